# fail2ban's action nftables-multiport, with a distant host banned:
# https://github.com/fail2ban/fail2ban/tree/master/config/action.d
nft -f - <<'END'
table inet f2b-table {
  set addr-set-web { type ipv4_addr; elements = { 192.0.2.1 }; }
  set addr6-set-web { type ipv6_addr; elements = { 2001:db8::1 }; }
  chain f2b-chain {
    type filter hook input priority filter - 1; policy accept;
    tcp dport { 80, 443, 4143 } ip saddr @addr-set-web reject with icmp port-unreachable
    tcp dport { 80, 443, 4143 } ip6 saddr @addr6-set-web reject with icmpv6 port-unreachable
  }
}
END
