//! What a process of half a millisecond does at its start. docs/start-up.md says what each piece buys.
//!
//! A program that uses this crate, and is linked with musl, gets its allocator.

#[cfg(any(test, target_env = "musl"))]
mod allocator;
#[cfg(any(test, target_env = "musl"))]
mod c;
mod prepare;
#[cfg(test)]
mod tests;

pub use prepare::prepare;

#[cfg(target_env = "musl")]
static FIRST: allocator::First = allocator::First::new();

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new(&FIRST);
