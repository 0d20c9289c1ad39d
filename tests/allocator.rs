//! The allocator of the programs with musl, which this test links with whatever libc is here.

// It calls what a program's allocations call.
#![allow(unsafe_code)]

#[path = "../src/allocator.rs"]
mod allocator;

use std::alloc::{GlobalAlloc as _, Layout};
use std::hash::{BuildHasher as _, RandomState};
use std::thread;

use allocator::{Allocator, First};

/// A block, what every byte of it is, and its layout.
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
            let start = if is_zeroed {
                // SAFETY: the size isn't 0.
                unsafe { allocator.alloc_zeroed(layout) }
            } else {
                // SAFETY: the size isn't 0.
                unsafe { allocator.alloc(layout) }
            };
            assert!(!start.is_null(), "seed {seed}");
            let block = Block { start, layout, byte };
            assert!(!is_zeroed || block.bytes().iter().all(|byte| *byte == 0), "seed {seed}");
            block.bytes().fill(byte);
            blocks.push(block);
        } else {
            let mut block = blocks.swap_remove(next(&mut state, blocks.len()));
            block.check(seed);
            if choice < 8 {
                // SAFETY: it was allocated with this layout, and isn't in the list any more.
                unsafe { allocator.dealloc(block.start, block.layout) };
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
        // SAFETY: it was allocated with this layout, and nobody looks at it again.
        unsafe { allocator.dealloc(block.start, block.layout) };
    }
}

#[test]
fn blocks_are_nobody_elses() {
    static FIRST: First = First::new();
    static ALLOCATOR: Allocator = Allocator::new(&FIRST);
    let seed = std::env::var("ALLOCATOR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("ALLOCATOR_SEED={seed}");
    use_it(&ALLOCATOR, seed);
    thread::scope(|scope| {
        for number in 1..=4 {
            scope.spawn(move || use_it(&ALLOCATOR, seed.wrapping_add(number)));
        }
    });
}

/// What is freed is handed out again, so that a loop takes no more memory than one of its turns.
#[test]
fn freed_blocks_are_handed_out_again() {
    static FIRST: First = First::new();
    static ALLOCATOR: Allocator = Allocator::new(&FIRST);
    for size in [1, 16, 500, 5000, 50_000] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the size isn't 0.
        let block = unsafe { ALLOCATOR.alloc(layout) };
        // SAFETY: it was allocated with this layout.
        unsafe { ALLOCATOR.dealloc(block, layout) };
        // SAFETY: the size isn't 0.
        let again = unsafe { ALLOCATOR.alloc(layout) };
        assert_eq!(block, again, "{size} bytes");
    }
}

/// The whole of the first piece, used and freed, isn't taken for one that was never used.
#[test]
fn zeroed_blocks_are_zeroed() {
    static FIRST: First = First::new();
    static ALLOCATOR: Allocator = Allocator::new(&FIRST);
    let layout = Layout::from_size_align(size_of::<First>(), 8).unwrap();
    for byte in 1..=2 {
        // SAFETY: the size isn't 0.
        let start = unsafe { ALLOCATOR.alloc_zeroed(layout) };
        let block = Block { start, layout, byte: 0 };
        block.check(u64::from(byte));
        block.bytes().fill(byte);
        // SAFETY: it was allocated with this layout, and nobody looks at it again.
        unsafe { ALLOCATOR.dealloc(start, layout) };
    }
}

/// A growing vector that was cut last grows where it is.
#[test]
fn the_last_block_grows_where_it_is() {
    static FIRST: First = First::new();
    static ALLOCATOR: Allocator = Allocator::new(&FIRST);
    let mut layout = Layout::from_size_align(8, 8).unwrap();
    // SAFETY: the size isn't 0.
    let block = unsafe { ALLOCATOR.alloc(layout) };
    for size in [16, 17, 500, 4096, 60_000, 100, 1] {
        // SAFETY: it was allocated with this layout, and the size isn't 0.
        assert_eq!(unsafe { ALLOCATOR.realloc(block, layout, size) }, block, "{size} bytes");
        layout = Layout::from_size_align(size, 8).unwrap();
    }
}
