# wg-quick, whose tunnel is eth1 here, with everything routed through it (AllowedIPs = 0.0.0.0/0), and its mark 51820.
# wg-quick(8), contrib "The new namespace / rule-based routing" on https://www.wireguard.com/netns/
ip -4 route add default via 10.78.0.1 dev eth1 table 51820
ip -4 rule add not fwmark 51820 table 51820
ip -4 rule add table main suppress_prefixlength 0
sysctl -qw net.ipv4.conf.all.src_valid_mark=1
nft -f - <<'END'
table ip wg-quick-eth1 {
  chain preraw { type filter hook prerouting priority -300; iifname != "eth1" ip daddr 10.78.0.2 fib saddr type != local drop; }
  chain premangle { type filter hook prerouting priority -150; meta l4proto udp meta mark set ct mark; }
  chain postmangle { type filter hook postrouting priority -150; meta l4proto udp meta mark 51820 ct mark set meta mark; }
}
END
