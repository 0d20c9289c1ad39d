//! The architectures that programs are built for, and what everybody calls them.

use std::env;

use crate::shell::Result;

/// A processor's architecture, for which binaries are built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// 64 bits of ARM.
    Arm64,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// This machine's.
    pub fn here() -> Result<Self> {
        let known = Self::ALL.into_iter().find(|architecture| architecture.machine() == env::consts::ARCH);
        known.ok_or_else(|| format!("{} is not an architecture that is built for", env::consts::ARCH).into())
    }

    /// By its [name](Self::name).
    pub fn named(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|architecture| architecture.name() == name);
        known.ok_or_else(|| format!("unknown architecture {name}: amd64 and arm64 are known").into())
    }

    /// True for this machine's.
    pub fn is_here(self) -> bool {
        self.machine() == env::consts::ARCH
    }

    /// Debian's name for it, which is also that of OCI images.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The kernel's name for it, which is also that of qemu and of compilers.
    pub fn machine(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// A package as apt names it on this machine.
    pub fn package(self, name: &str) -> String {
        if self.is_here() { name.to_owned() } else { format!("{name}:{}", self.name()) }
    }

    /// The file that loads dynamic programs.
    pub fn loader(self) -> &'static str {
        match self {
            Self::Amd64 => "ld-linux-x86-64.so.2",
            Self::Arm64 => "ld-linux-aarch64.so.1",
        }
    }

    /// Rust's name for programs for it that are linked with musl.
    pub fn triple(self) -> String {
        format!("{}-unknown-linux-musl", self.machine())
    }
}
