//! A pod's UID, and the pod of a process.

/// A pod's UID as it may stand in a path: only letters, digits and dashes count as one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(String);

impl PodUid {
    /// From the API's `metadata.uid`.
    pub fn new(text: &str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_whole = (8..=64).contains(&text.len()) && text.bytes().all(is_plain);
        is_whole.then(|| Self(text.to_owned()))
    }

    /// From a process's /proc/PID/cgroup: kubelet's cgroups are `…/podUID/CONTAINER` or, with systemd, in which a dash is a
    /// level, `…/kubepods-besteffort-podUID.slice/…` with underscores (pkg/kubelet/cm/pod_container_manager_linux.go).
    ///
    /// Below its own cgroup, a pod may name cgroups as it likes: the first that is a pod's counts.
    pub fn in_cgroup(text: &str) -> Option<Self> {
        let parts = text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).flat_map(|path| path.split('/'));
        for part in parts {
            let uid = match part.strip_suffix(".slice") {
                Some(slice) => {
                    slice.strip_prefix("kubepods").and_then(|rest| rest.rsplit_once("-pod")).map(|(_, uid)| uid)
                }
                None => part.strip_prefix("pod"),
            };
            if let Some(uid) = uid.and_then(|uid| Self::new(&uid.replace('_', "-"))) {
                return Some(uid);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_uid_is_read_from_both_kinds_of_cgroups_and_never_from_what_a_pod_named() {
        let uid = "2c48913c-b29f-11e7-9350-020968147796";
        let slice = uid.replace('-', "_");
        for text in [
            format!("0::/kubepods/besteffort/pod{uid}/0123abc"),
            format!("12:cpu:/kubepods/pod{uid}/0123abc\n11:memory:/kubepods/pod{uid}/0123abc\n"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-0.scope"
            ),
            format!("0::/kubepods.slice/kubepods-pod{slice}.slice/crio-0.scope"),
            format!("0::/kubelet.slice/kubelet-kubepods.slice/x\n0::/kubepods.slice/kubepods-pod{slice}.slice/x"),
            // A container that may write to its cgroup made one with another pod's name.
            format!("0::/kubepods/pod{uid}/0123abc/podffffffff-b29f-11e7-9350-020968147796/x"),
        ] {
            assert_eq!(PodUid::in_cgroup(&text), PodUid::new(uid), "{text}");
        }
        for text in
            ["", "0::/", "0::/init.scope", "0::/system.slice/podman.service", "0::/pod", "0::/pod../x", "nonsense"]
        {
            assert_eq!(PodUid::in_cgroup(text), None, "{text}");
        }
        assert_eq!(PodUid::new("../../etc"), None);
        assert_eq!(PodUid::new(""), None);
    }
}
