# Docker's nftables backend (version 29), whose bridge is eth1 here and whose container is 10.78.0.1, with ports 8080 and,
# on loopback alone, 443 published: https://docs.docker.com/engine/network/firewall-nftables/
sysctl -qw net.ipv4.ip_forward=1
nft -f - <<'END'
table ip docker-bridges {
  map filter-forward-in-jumps { type ifname : verdict; elements = { "eth1" : jump filter-forward-in__eth1 }; }
  map filter-forward-out-jumps { type ifname : verdict; elements = { "eth1" : jump filter-forward-out__eth1 }; }
  map nat-postrouting-out-jumps { type ifname : verdict; elements = { "eth1" : jump nat-postrouting-out__eth1 }; }
  chain filter-FORWARD {
    type filter hook forward priority filter; policy accept;
    oifname vmap @filter-forward-in-jumps
    iifname vmap @filter-forward-out-jumps
  }
  chain nat-OUTPUT {
    type nat hook output priority -100; policy accept;
    ip daddr != 127.0.0.0/8 fib daddr type local counter jump nat-prerouting-and-output
  }
  chain nat-POSTROUTING {
    type nat hook postrouting priority srcnat; policy accept;
    iifname vmap @nat-postrouting-out-jumps
  }
  chain nat-PREROUTING {
    type nat hook prerouting priority dstnat; policy accept;
    fib daddr type local counter jump nat-prerouting-and-output
  }
  chain nat-prerouting-and-output {
    iifname != "eth1" tcp dport 8080 counter dnat to 10.78.0.1:80
    iifname != "eth1" ip daddr 127.0.0.1 tcp dport 443 counter dnat to 10.78.0.1:443
  }
  chain raw-PREROUTING {
    type filter hook prerouting priority raw; policy accept;
    iifname != "lo" ip daddr 127.0.0.1 tcp dport 443 counter drop
  }
  chain filter-forward-in__eth1 {
    ct state established,related counter accept
    ip daddr 10.78.0.1 tcp dport 80 counter accept
    counter drop
  }
  chain filter-forward-out__eth1 {
    ct state established,related counter accept
    counter accept
  }
  chain nat-postrouting-out__eth1 {
    oifname != "eth1" ip saddr 10.78.0.0/24 counter masquerade
  }
}
END
