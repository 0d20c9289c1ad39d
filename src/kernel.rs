//! The running kernel's version, and where it tells about the calling thread.

use nix::sys::utsname::uname;
use nix::unistd::{getpid, gettid};

/// The folder of /proc that is about the calling thread. What is about the process, its first thread, a new process
/// finds sooner than what is about a thread: the kernel makes each folder as it is looked up.
pub(crate) fn proc_of_thread() -> &'static str {
    if gettid() == getpid() { "/proc/self" } else { "/proc/thread-self" }
}

/// The kernel's version, such as 6 and 18, if its release begins with one.
pub(crate) fn version() -> Option<(u32, u32)> {
    version_of(uname().ok()?.release().to_str()?)
}

pub(crate) fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    next().zip(next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_a_version() {
        for (release, want) in [
            ("5.14", Some((5, 14))),
            ("5.14.0-570.el9.x86_64", Some((5, 14))),
            ("5.15-rc1", Some((5, 15))),
            ("6.1.0-50-cloud-amd64", Some((6, 1))),
            ("10.0.1", Some((10, 0))),
            ("4.18.0-553.el8", Some((4, 18))),
            ("5", None),
            ("", None),
            ("linux", None),
        ] {
            assert_eq!(version_of(release), want, "{release}");
        }
    }
}
