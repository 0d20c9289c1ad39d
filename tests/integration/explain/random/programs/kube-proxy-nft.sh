# kube-proxy in mode nftables: the service 192.0.2.1:80 with two endpoints, a service without any on port 443, and node
# port 8080. https://kubernetes.io/docs/reference/networking/virtual-ips/#proxy-mode-nftables, pkg/proxy/nftables.
nft -f - <<'END'
table ip kube-proxy {
  comment "rules for kube-proxy"
  set cluster-ips { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }; }
  set nodeport-ips { type ipv4_addr; elements = { 10.77.0.2 }; }
  map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 192.0.2.1 . tcp . 443 : goto reject-chain }; }
  map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
  map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 192.0.2.1 . tcp . 80 : goto service-AAAAAAAA-shop/web/tcp/http }; }
  map service-nodeports { type inet_proto . inet_service : verdict; elements = { tcp . 8080 : goto external-AAAAAAAA-shop/web/tcp/http }; }
  chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; ct state new jump firewall-check; }
  chain filter-output-pre-dnat { type filter hook output priority -110; ct state new jump firewall-check; }
  chain filter-input { type filter hook input priority 0; ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }
  chain filter-forward { type filter hook forward priority 0; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
  chain filter-output { type filter hook output priority 0; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
  chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
    ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
  }
  chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
  chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
  chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
  chain cluster-ips-check { ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"; ip daddr 192.0.2.128/25 drop; }
  chain reject-chain { reject; }
  chain mark-for-masquerade { mark set mark or 0x4000; }
  chain masquerading { mark and 0x4000 == 0 return; mark set mark xor 0x4000; masquerade fully-random; }
  chain external-AAAAAAAA-shop/web/tcp/http { jump mark-for-masquerade; goto service-AAAAAAAA-shop/web/tcp/http; }
  chain service-AAAAAAAA-shop/web/tcp/http {
    ip daddr 192.0.2.1 tcp dport 80 ip saddr != 10.77.0.0/24 jump mark-for-masquerade
    numgen random mod 2 vmap { 0 : goto endpoint-BBBBBBBB-shop/web, 1 : goto endpoint-CCCCCCCC-shop/web }
  }
  chain endpoint-BBBBBBBB-shop/web { ip saddr 10.77.0.1 jump mark-for-masquerade; meta l4proto tcp dnat to 10.77.0.1:9999; }
  chain endpoint-CCCCCCCC-shop/web { ip saddr 10.77.0.1 jump mark-for-masquerade; meta l4proto tcp dnat to 10.77.0.1:9999; }
}
END
