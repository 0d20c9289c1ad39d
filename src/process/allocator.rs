//! The allocator of proxy-init and linkerd-cni with musl, for processes that live for a millisecond.
//!
//! musl's own maps memory page by page. dlmalloc keeps what is large; what is small, and at first everything, is cut from
//! memory in a row, so that as few pages as possible are touched. Freed, a small block waits for another one of its size.
//! What else is freed of the first 64 KB is lost, unless it was cut last.

// An allocator is `unsafe` by its nature.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;

use dlmalloc::Dlmalloc;

/// Blocks are multiples of this, in bytes, and begin at one.
const STEP: usize = 16;

/// The largest small block.
const SMALL: usize = 1024;

/// How much is cut up at a time.
const PIECE: usize = 64 * 1024;

/// The first piece: a part of the program's own memory, which takes no system call.
#[repr(C, align(16))]
pub(crate) struct First(UnsafeCell<[u8; PIECE]>);

// SAFETY: only the allocator that has it looks into it, under its lock.
unsafe impl Sync for First {}

impl First {
    /// One that no allocator has yet.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([0; PIECE]))
    }
}

/// Hands out memory to all threads of the process.
pub(crate) struct Allocator {
    is_taken: AtomicBool,
    memory: UnsafeCell<Memory>,
}

// SAFETY: its memory is used under its lock.
unsafe impl Sync for Allocator {}

struct Memory {
    first: *mut u8,
    /// From here on, the first piece was never used: every byte is 0.
    unused: *mut u8,
    /// What is left of the piece that is being cut up.
    rest: *mut u8,
    left: usize,
    /// By size: the freed small block that is handed out next. Each begins with the address of one more.
    free: [*mut u8; SMALL / STEP + 1],
    large: Dlmalloc,
}

impl Allocator {
    /// One that nothing was taken from. No other has the same first piece.
    pub(crate) const fn new(first: &'static First) -> Self {
        let first = first.0.get().cast();
        Self {
            is_taken: AtomicBool::new(false),
            memory: UnsafeCell::new(Memory {
                first,
                unused: first,
                rest: first,
                left: PIECE,
                free: [ptr::null_mut(); SMALL / STEP + 1],
                large: Dlmalloc::new(),
            }),
        }
    }

    /// Few of the processes have a second thread, and none has one that allocates often, so that nothing need be told of
    /// it when the lock is given back.
    fn locked<T>(&self, work: impl FnOnce(&mut Memory) -> T) -> T {
        while self.is_taken.swap(true, Ordering::Acquire) {
            yield_now();
        }
        // SAFETY: whoever has set the flag is alone here until it is cleared, and `work`, in this file, allocates nothing.
        let result = work(unsafe { &mut *self.memory.get() });
        self.is_taken.store(false, Ordering::Release);
        result
    }
}

/// Whether a block, its size rounded up, is one of those that wait for others of their size.
fn is_small(size: usize, align: usize) -> bool {
    size <= SMALL && align <= STEP
}

fn rounded(layout: Layout) -> usize {
    // A layout's size is at most isize::MAX.
    layout.size().next_multiple_of(STEP)
}

impl Memory {
    fn is_of_first(&self, block: *mut u8) -> bool {
        block.addr().wrapping_sub(self.first.addr()) < PIECE
    }

    /// Whether large blocks are cut too.
    fn cuts_first(&self) -> bool {
        self.is_of_first(self.rest)
    }

    fn cut(&mut self, size: usize) -> Option<*mut u8> {
        self.left = self.left.checked_sub(size)?;
        let block = self.rest;
        self.go_on_at(block.wrapping_add(size));
        Some(block)
    }

    fn go_on_at(&mut self, rest: *mut u8) {
        self.rest = rest;
        if self.is_of_first(rest.wrapping_sub(1)) {
            self.unused = self.unused.max(rest);
        }
    }

    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        let size = rounded(layout);
        if is_small(size, layout.align()) {
            let block = self.free[size / STEP];
            if !block.is_null() {
                // SAFETY: a freed small block begins with the address of the next.
                self.free[size / STEP] = unsafe { block.cast::<*mut u8>().read() };
                return block;
            }
            if let Some(block) = self.cut(size) {
                return block;
            }
            // SAFETY: dlmalloc takes any size and an alignment that is a power of two.
            let piece = unsafe { self.large.malloc(PIECE, STEP) };
            if piece.is_null() {
                return piece;
            }
            (self.rest, self.left) = (piece, PIECE);
            return self.cut(size).unwrap_or(ptr::null_mut());
        }
        if layout.align() <= STEP
            && self.cuts_first()
            && let Some(block) = self.cut(size)
        {
            return block;
        }
        // SAFETY: as above; a layout's alignment is a power of two.
        unsafe { self.large.malloc(layout.size(), layout.align()) }
    }

    fn allocate_zeroed(&mut self, layout: Layout) -> *mut u8 {
        let unused = self.unused;
        let block = self.allocate(layout);
        let used = if block.is_null() {
            0
        } else if self.is_of_first(block) {
            unused.addr().saturating_sub(block.addr()).min(layout.size())
        } else {
            layout.size()
        };
        // SAFETY: the block has room for as many.
        unsafe { block.write_bytes(0, used) };
        block
    }

    /// # Safety
    /// The block was allocated here with this layout, and isn't used any more.
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        let size = rounded(layout);
        if is_small(size, layout.align()) {
            // SAFETY: the block has 16 bytes at least, is aligned to as many, and nobody else uses it.
            unsafe { block.cast::<*mut u8>().write(self.free[size / STEP]) };
            self.free[size / STEP] = block;
        } else if !self.is_of_first(block) {
            // SAFETY: it isn't small and not of the first piece, so it is dlmalloc's.
            unsafe { self.large.free(block, layout.size(), layout.align()) };
        } else if block.wrapping_add(size) == self.rest {
            self.rest = block;
            self.left += size;
        }
    }

    /// Makes a block larger or smaller where it is, if that can be done.
    ///
    /// # Safety
    /// The block was allocated here with this layout.
    unsafe fn resize(&mut self, block: *mut u8, layout: Layout, new: Layout) -> Option<*mut u8> {
        let (size, wanted) = (rounded(layout), rounded(new));
        let is_small = [size, wanted].map(|size| is_small(size, layout.align()));
        if size == wanted && (is_small[0] || self.is_of_first(block)) {
            return Some(block);
        }
        if self.is_of_first(block) {
            if block.wrapping_add(size) != self.rest {
                return None;
            }
            self.left = (self.left + size).checked_sub(wanted)?;
            self.go_on_at(block.wrapping_add(wanted));
            return Some(block);
        }
        if is_small.contains(&true) {
            return None;
        }
        // SAFETY: it isn't small and not of the first piece, so it is dlmalloc's; the caller vouches for the rest.
        Some(unsafe { self.large.realloc(block, layout.size(), layout.align(), new.size()) })
    }
}

// SAFETY: blocks don't overlap: what is cut is cut once, and what waits was freed, or it is dlmalloc's. They have room for their
// layout, and its alignment.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.locked(|memory| memory.allocate(layout))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.locked(|memory| memory.allocate_zeroed(layout))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller vouches for it.
        self.locked(|memory| unsafe { memory.free(block, layout) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller vouches for the size.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        self.locked(|memory| {
            // SAFETY: the caller vouches for it.
            if let Some(block) = unsafe { memory.resize(block, layout, new) } {
                return block;
            }
            let moved = memory.allocate(new);
            if !moved.is_null() {
                // SAFETY: both have room for so much, and they are two blocks.
                unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(size)) };
                // SAFETY: the caller vouches for it.
                unsafe { memory.free(block, layout) };
            }
            moved
        })
    }
}
