# Docker in the pod, whose bridge is eth1 here and whose container is 10.78.0.1, with port 8080 published.
# https://docs.docker.com/engine/network/packet-filtering-firewalls/ and its rules as of version 28.
sysctl -qw net.ipv4.ip_forward=1
iptables-restore --noflush <<'END'
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 10.78.0.0/24 ! -o eth1 -j MASQUERADE
-A DOCKER ! -i eth1 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.78.0.1:80
COMMIT
*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i eth1 -j ACCEPT
-A DOCKER-CT -o eth1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-BRIDGE -o eth1 -j DOCKER
-A DOCKER -d 10.78.0.1/32 ! -i eth1 -o eth1 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i eth1 -o eth1 -j DROP
COMMIT
*raw
-A PREROUTING -d 10.78.0.1/32 ! -i eth1 -j DROP
COMMIT
END
