# Debian's netavark, as podman in the pod calls it for a container whose port 80 is published as 8080.
mkdir -p /run/netns
ip netns add container
/usr/lib/podman/netavark --config /run/netavark setup /run/netns/container <<'END'
{"container_id": "0123456789abcdef", "container_name": "web",
 "port_mappings": [{"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp", "range": 1}],
 "networks": {"podman": {"static_ips": ["10.88.0.2"], "interface_name": "eth0"}},
 "network_info": {"podman": {"name": "podman", "driver": "bridge", "network_interface": "podman0",
   "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9", "created": "2026-01-01T00:00:00Z",
   "subnets": [{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}],
   "ipv6_enabled": false, "internal": false, "dns_enabled": false, "ipam_options": {"driver": "host-local"}}}}
END
