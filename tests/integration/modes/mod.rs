//! Choosing a mode, and what is true of one mode alone.

mod choice;
mod legacy;
mod legacy_locks;
mod native;
mod nft;

use lab::network::Namespace;

use crate::support::{handles, install};

/// Installs with the flags `before`, and then with `after`: as many rules as `stay` are kept, and verify finds the others in
/// their place. Returns the namespace, and a fresh one with the rules of `after`.
fn changed_and_fresh(base: &str, before: &str, after: &str, stay: usize) -> [Namespace; 2] {
    let namespace = Namespace::new();
    install(&namespace, &format!("{base} {before}"));
    let earlier = handles(&namespace);
    install(&namespace, &format!("{base} {after}"));
    let now = handles(&namespace);
    let kept = now.iter().filter(|rule| earlier.contains(rule)).count();
    assert_eq!(kept, stay, "{before} to {after}: {earlier:?} {now:?}");
    install(&namespace, &format!("verify {base} {after}"));
    let fresh = Namespace::new();
    install(&fresh, &format!("{base} {after}"));
    [namespace, fresh]
}
