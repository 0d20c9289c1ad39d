//! The allocator of proxy-init with musl, and C's malloc beside it, which these tests link with whatever libc is here.

// They call the functions that a program's allocations call.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc as _, Layout};
use std::thread;

use lab::network::seed;

use crate::allocator::{Allocator, First};
use crate::c;

fn alloc(allocator: &Allocator, layout: Layout) -> *mut u8 {
    assert_ne!(layout.size(), 0);
    // SAFETY: the size isn't 0.
    unsafe { allocator.alloc(layout) }
}

fn alloc_zeroed(allocator: &Allocator, layout: Layout) -> *mut u8 {
    assert_ne!(layout.size(), 0);
    // SAFETY: the size isn't 0.
    unsafe { allocator.alloc_zeroed(layout) }
}

/// Gives back a block that was allocated with this layout, and that nobody looks at again.
fn free(allocator: &Allocator, block: *mut u8, layout: Layout) {
    // SAFETY: these tests keep each block with its layout, until it is given back.
    unsafe { allocator.dealloc(block, layout) };
}

/// A block, the value of its bytes, and its layout.
struct Block {
    start: *mut u8,
    layout: Layout,
    byte: u8,
}

impl Block {
    fn bytes(&self) -> &'static mut [u8] {
        // SAFETY: the block was allocated with this layout, and only this test knows it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }

    fn check(&self, seed: u64) {
        assert!(self.start.addr().is_multiple_of(self.layout.align()), "seed {seed}");
        assert!(self.bytes().iter().all(|byte| *byte == self.byte), "seed {seed}");
    }
}

/// xorshift64.
fn next(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state % below as u64).unwrap()
}

/// Allocates, frees and resizes at random, and sees that no block's bytes are anyone else's.
fn use_it(allocator: &Allocator, seed: u64) {
    let mut state = seed | 1;
    let mut blocks: Vec<Block> = Vec::new();
    for step in 0..20_000 {
        let largest = [40, 600, 9000, 300_000][next(&mut state, 100) / 33];
        let size = 1 + next(&mut state, largest);
        let byte = step as u8;
        let choice = next(&mut state, 10);
        if choice < 5 || blocks.is_empty() {
            let layout = Layout::from_size_align(size, 1 << next(&mut state, 7)).unwrap();
            let is_zeroed = choice == 0;
            let start = if is_zeroed { alloc_zeroed(allocator, layout) } else { alloc(allocator, layout) };
            assert!(!start.is_null(), "seed {seed}");
            let block = Block { start, layout, byte };
            assert!(!is_zeroed || block.bytes().iter().all(|byte| *byte == 0), "seed {seed}");
            block.bytes().fill(byte);
            blocks.push(block);
        } else {
            let mut block = blocks.swap_remove(next(&mut state, blocks.len()));
            block.check(seed);
            if choice < 8 {
                free(allocator, block.start, block.layout);
                continue;
            }
            let kept = size.min(block.layout.size());
            // SAFETY: it was allocated with this layout, and the size isn't 0.
            block.start = unsafe { allocator.realloc(block.start, block.layout, size) };
            assert!(!block.start.is_null(), "seed {seed}");
            block.layout = Layout::from_size_align(size, block.layout.align()).unwrap();
            assert!(block.bytes()[..kept].iter().all(|it| *it == block.byte), "seed {seed}");
            block.byte = byte;
            block.bytes().fill(byte);
            blocks.push(block);
        }
    }
    for block in blocks {
        block.check(seed);
        free(allocator, block.start, block.layout);
    }
}

#[test]
fn blocks_are_nobody_elses() {
    static FIRST: First = First::new();
    static ALLOCATOR: Allocator = Allocator::new(&FIRST);
    let seed = seed();
    use_it(&ALLOCATOR, seed);
    thread::scope(|scope| {
        for number in 1..=4 {
            scope.spawn(move || use_it(&ALLOCATOR, seed.wrapping_add(number)));
        }
    });
}

/// A block that is freed right away is handed out again, so that a loop takes no more memory than one of its turns.
#[test]
fn the_last_block_is_handed_out_again() {
    static FIRST: First = First::new();
    static ALLOCATOR: Allocator = Allocator::new(&FIRST);
    for size in [1, 16, 500, 5000, 50_000] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        let block = alloc(&ALLOCATOR, layout);
        free(&ALLOCATOR, block, layout);
        assert_eq!(alloc(&ALLOCATOR, layout), block, "{size} bytes");
    }
}

/// The whole of the first piece, used and freed, isn't taken for one that was never used.
#[test]
fn zeroed_blocks_are_zeroed() {
    static FIRST: First = First::new();
    static ALLOCATOR: Allocator = Allocator::new(&FIRST);
    let layout = Layout::from_size_align(size_of::<First>(), 8).unwrap();
    for byte in 1..=2 {
        let start = alloc_zeroed(&ALLOCATOR, layout);
        let block = Block { start, layout, byte: 0 };
        block.check(u64::from(byte));
        block.bytes().fill(byte);
        free(&ALLOCATOR, start, layout);
    }
}

/// A small block that was freed makes no large one be cleared, which would touch all of its pages.
#[test]
fn zeros_are_written_only_where_something_was_in_use() {
    static FIRST: First = First::new();
    static ALLOCATOR: Allocator = Allocator::new(&FIRST);
    let [small, large] = [64, 4096].map(|size| Layout::from_size_align(size, 8).unwrap());
    let start = alloc(&ALLOCATOR, small);
    Block { start, layout: small, byte: 1 }.bytes().fill(1);
    free(&ALLOCATOR, start, small);
    let marked = start.wrapping_add(1024);
    // SAFETY: the byte is of the same piece of memory, of which nothing is in use.
    unsafe { marked.write(2) };
    let block = Block { start: alloc_zeroed(&ALLOCATOR, large), layout: large, byte: 0 };
    assert_eq!(block.start, start);
    assert_eq!(block.bytes()[1024], 2, "no zero was written there");
    assert!(block.bytes()[..1024].iter().all(|byte| *byte == 0));
}

/// A growing vector that was cut last grows where it is.
#[test]
fn the_last_block_grows_where_it_is() {
    static FIRST: First = First::new();
    static ALLOCATOR: Allocator = Allocator::new(&FIRST);
    let mut layout = Layout::from_size_align(8, 8).unwrap();
    let block = alloc(&ALLOCATOR, layout);
    for size in [16, 17, 500, 4096, 60_000, 100, 1] {
        // SAFETY: it was allocated with this layout, and the size isn't 0.
        assert_eq!(unsafe { ALLOCATOR.realloc(block, layout, size) }, block, "{size} bytes");
        layout = Layout::from_size_align(size, 8).unwrap();
    }
}

/// Allocates, resizes and frees as C does, and sees that blocks keep their bytes.
#[test]
fn c_gets_what_it_asks_for() {
    let seed = seed();
    let state = &mut (seed | 1);
    let mut blocks: Vec<(&mut [u8], u8)> = Vec::new();
    for round in 0..20_000 {
        let size = next(state, 3000);
        let byte = round as u8;
        let old = (next(state, 2) == 0 && !blocks.is_empty()).then(|| blocks.swap_remove(next(state, blocks.len())));
        let (kept, start) = match old {
            Some((bytes, old)) => {
                assert!(bytes.iter().all(|byte| *byte == old), "seed {seed}");
                if next(state, 2) == 0 {
                    // SAFETY: it is of these functions, and no longer used.
                    unsafe { c::free(bytes.as_mut_ptr().cast()) };
                    continue;
                }
                // SAFETY: likewise.
                let new = unsafe { c::realloc(bytes.as_mut_ptr().cast(), size) };
                (bytes.len().min(size), (new, old))
            }
            // SAFETY: it takes any size.
            None if next(state, 2) == 0 => (0, (unsafe { c::malloc(size) }, 0)),
            // SAFETY: it takes any size.
            None => (size, (unsafe { c::calloc(size, 1) }, 0)),
        };
        assert!(!start.0.is_null() && start.0.addr().is_multiple_of(16), "seed {seed}");
        // SAFETY: a block has room for as many bytes, and only this test knows it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.0.cast::<u8>(), size) };
        assert!(bytes.iter().take(kept).all(|byte| *byte == start.1), "seed {seed}");
        bytes.fill(byte);
        blocks.push((bytes, byte));
    }
    // SAFETY: there is no such block.
    unsafe { c::free(std::ptr::null_mut()) };
    // SAFETY: it takes any size.
    assert!(unsafe { c::malloc(usize::MAX) }.is_null());
    // SAFETY: it takes any size.
    assert!(unsafe { c::calloc(usize::MAX / 2, 3) }.is_null());
    // SAFETY: null is no block yet.
    assert!(unsafe { c::realloc(std::ptr::null_mut(), usize::MAX) }.is_null());
    // SAFETY: it takes any size.
    let block = unsafe { c::malloc(1) };
    // SAFETY: it was allocated the line before, and a block that can't be made larger stays as it is.
    assert!(unsafe { c::realloc(block, usize::MAX) }.is_null());
    // SAFETY: it is still in use.
    unsafe { c::free(block) };
}
