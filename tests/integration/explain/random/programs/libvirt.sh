# libvirt's network "default", whose bridge is eth1 here, as virtnetworkd makes it in the pod of a virtual machine:
# https://libvirt.org/firewall.html
sysctl -qw net.ipv4.ip_forward=1
iptables-restore --noflush <<'END'
*filter
:LIBVIRT_FWI - [0:0]
:LIBVIRT_FWO - [0:0]
:LIBVIRT_FWX - [0:0]
:LIBVIRT_INP - [0:0]
:LIBVIRT_OUT - [0:0]
-A INPUT -j LIBVIRT_INP
-A FORWARD -j LIBVIRT_FWX
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A OUTPUT -j LIBVIRT_OUT
-A LIBVIRT_FWI -d 10.78.0.0/24 -o eth1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o eth1 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 10.78.0.0/24 -i eth1 -j ACCEPT
-A LIBVIRT_FWO -i eth1 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWX -i eth1 -o eth1 -j ACCEPT
-A LIBVIRT_INP -i eth1 -p udp -m udp --dport 53 -j ACCEPT
-A LIBVIRT_INP -i eth1 -p tcp -m tcp --dport 53 -j ACCEPT
-A LIBVIRT_INP -i eth1 -p udp -m udp --dport 67 -j ACCEPT
-A LIBVIRT_OUT -o eth1 -p udp -m udp --dport 68 -j ACCEPT
COMMIT
*mangle
:LIBVIRT_PRT - [0:0]
-A POSTROUTING -j LIBVIRT_PRT
-A LIBVIRT_PRT -o eth1 -p udp -m udp --dport 68 -j CHECKSUM --checksum-fill
COMMIT
*nat
:LIBVIRT_PRT - [0:0]
-A POSTROUTING -j LIBVIRT_PRT
-A LIBVIRT_PRT -s 10.78.0.0/24 -d 224.0.0.0/24 -j RETURN
-A LIBVIRT_PRT -s 10.78.0.0/24 -d 255.255.255.255/32 -j RETURN
-A LIBVIRT_PRT -s 10.78.0.0/24 ! -d 10.78.0.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
-A LIBVIRT_PRT -s 10.78.0.0/24 ! -d 10.78.0.0/24 -j MASQUERADE
COMMIT
END
