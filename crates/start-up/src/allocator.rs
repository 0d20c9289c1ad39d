//! Memory in a row from the program's own, and dlmalloc's after that.
//!
//! A process of half a millisecond needs some 30 KiB. Cut from memory that the program has from the start, they take no
//! system call and touch as few pages as possible. What is freed of them is lost, unless it was cut last.

// An allocator is `unsafe` by its nature.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;

use dlmalloc::Dlmalloc;

/// Blocks of the first piece begin at a multiple of this, in bytes.
const STEP: usize = 16;

const SIZE: usize = 256 * 1024;

/// The first piece: a part of the program's own memory.
#[repr(C, align(16))]
pub(crate) struct First(UnsafeCell<[u8; SIZE]>);

// SAFETY: only the allocator that has it looks into it, under its lock.
unsafe impl Sync for First {}

impl First {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([0; SIZE]))
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
    /// The part of the first piece that has been cut off, in bytes: a multiple of the step.
    cut: usize,
    /// The part that was ever in use: the memory after it is zero.
    touched: usize,
    rest: Dlmalloc,
}

impl Allocator {
    /// One that nothing was taken from. No other has the same first piece.
    pub(crate) const fn new(first: &'static First) -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            memory: UnsafeCell::new(Memory { first: first.0.get().cast(), cut: 0, touched: 0, rest: Dlmalloc::new() }),
        }
    }

    /// Few of the processes have a second thread, and none has one that allocates often, so that nothing need be told of
    /// it when the lock is given back.
    fn locked<T>(&self, work: impl FnOnce(&mut Memory) -> T) -> T {
        while self.is_taken.swap(true, Ordering::Acquire) {
            yield_now();
        }
        // SAFETY: the thread that has set the flag is alone here until it is cleared, and `work`, in this file,
        // allocates nothing.
        let result = work(unsafe { &mut *self.memory.get() });
        self.is_taken.store(false, Ordering::Release);
        result
    }
}

impl Memory {
    /// Where a block is in the first piece, if it is of that.
    fn place(&self, block: *mut u8) -> Option<usize> {
        let place = block.addr().wrapping_sub(self.first.addr());
        (place < SIZE).then_some(place)
    }

    /// A block at this place of the first piece, which nothing after it is cut from; none if there is no room.
    fn cut_at(&mut self, place: usize, layout: Layout) -> Option<*mut u8> {
        // Sizes of layouts are at most isize::MAX.
        let end = (place + layout.size()).next_multiple_of(STEP);
        if layout.align() > STEP || end > SIZE {
            return None;
        }
        self.cut = end;
        self.touched = self.touched.max(end);
        Some(self.first.wrapping_add(place))
    }

    fn was_cut_last(&self, place: usize, layout: Layout) -> bool {
        (place + layout.size()).next_multiple_of(STEP) == self.cut
    }

    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        if let Some(block) = self.cut_at(self.cut, layout) {
            return block;
        }
        // SAFETY: dlmalloc takes any size, and a layout's alignment is a power of two.
        unsafe { self.rest.malloc(layout.size(), layout.align()) }
    }

    /// Writes no zeros where none but zeros can be: memory that is asked for in case it is needed costs nothing.
    fn allocate_zeroed(&mut self, layout: Layout) -> *mut u8 {
        let used_before = self.touched - self.cut;
        let Some(block) = self.cut_at(self.cut, layout) else {
            // SAFETY: dlmalloc takes any size, and a layout's alignment is a power of two.
            return unsafe { self.rest.calloc(layout.size(), layout.align()) };
        };
        // SAFETY: the block was just cut, and has room for so much.
        unsafe { block.write_bytes(0, used_before.min(layout.size())) };
        block
    }

    /// # Safety
    /// The block was allocated here with this layout, and isn't used any more.
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        let Some(place) = self.place(block) else {
            // SAFETY: it isn't of the first piece, so it is dlmalloc's; the caller vouches for the rest.
            return unsafe { self.rest.free(block, layout.size(), layout.align()) };
        };
        if self.was_cut_last(place, layout) {
            self.cut = place;
        }
    }

    /// # Safety
    /// The block was allocated here with this layout; the new one has the same alignment.
    unsafe fn resize(&mut self, block: *mut u8, layout: Layout, new: Layout) -> *mut u8 {
        let Some(place) = self.place(block) else {
            // SAFETY: it isn't of the first piece, so it is dlmalloc's; the caller vouches for the rest.
            return unsafe { self.rest.realloc(block, layout.size(), layout.align(), new.size()) };
        };
        if self.was_cut_last(place, layout)
            && let Some(block) = self.cut_at(place, new)
        {
            return block;
        }
        if new.size() <= layout.size() {
            return block;
        }
        let moved = self.allocate(new);
        if !moved.is_null() {
            // SAFETY: both have room for so much, and they are two blocks.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size()) };
        }
        moved
    }
}

// SAFETY: blocks don't overlap: what is cut is cut once, until it is given back, or it is dlmalloc's. They have room for
// their layout, and its alignment.
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
        // SAFETY: the caller vouches for it.
        self.locked(|memory| unsafe { memory.resize(block, layout, new) })
    }
}
