# tailscaled, whose tunnel is eth1 here, with its marks and its rules of routing: https://tailscale.com/kb/1294/firewall-mode,
# util/linuxfw and wgengine/router in its source.
ip -4 rule add pref 5210 fwmark 0x80000/0xff0000 table main
ip -4 rule add pref 5230 fwmark 0x80000/0xff0000 table default
ip -4 rule add pref 5250 fwmark 0x80000/0xff0000 unreachable
ip -4 rule add pref 5270 table 52
ip -4 route add 100.100.100.100 dev eth1 table 52
iptables-restore --noflush <<'END'
*nat
:ts-postrouting - [0:0]
-A POSTROUTING -j ts-postrouting
-A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE
COMMIT
*filter
:ts-forward - [0:0]
:ts-input - [0:0]
-A INPUT -j ts-input
-A FORWARD -j ts-forward
-A ts-input -s 100.101.102.103/32 -i lo -j ACCEPT
-A ts-input -s 100.115.92.0/23 ! -i eth1 -j RETURN
-A ts-input -s 100.64.0.0/10 ! -i eth1 -j DROP
-A ts-input -i eth1 -j ACCEPT
-A ts-input -p udp -m udp --dport 41641 -j ACCEPT
-A ts-forward -i eth1 -j MARK --set-xmark 0x40000/0xff0000
-A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT
-A ts-forward -s 100.64.0.0/10 -o eth1 -j DROP
-A ts-forward -o eth1 -j ACCEPT
COMMIT
END
