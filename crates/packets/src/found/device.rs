//! Network devices.

use crate::rules::{Intervals, Name, interface};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub index: u32,
    pub name: Name,
    /// Its kind, such as `veth` (`IFLA_INFO_KIND`); empty for lo, and for those that drivers of hardware make.
    pub kind: Vec<u8>,
    /// `IFF_UP`
    pub is_up: bool,
    /// The number of the device by which its packets come and go, if it is made on top of another one of this namespace.
    pub lower: Option<u32>,
    /// The number of the bridge or the bond that has taken it.
    pub master: Option<u32>,
    /// Whether it finds other hosts by asking for their addresses on its link. lo doesn't, nor a device that leads to one
    /// host alone.
    pub has_neighbours: bool,
}

impl Device {
    /// The names of these, as numbers.
    pub fn names<'a>(devices: impl IntoIterator<Item = &'a Self>) -> Intervals {
        Intervals::each(devices.into_iter().map(|device| interface(device.name.as_bytes())))
    }
}
