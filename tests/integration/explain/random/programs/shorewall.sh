# Debian's shorewall, for a host with one interface, with all ports open that are used here.
cp /usr/share/doc/shorewall/examples/one-interface/* /etc/shorewall/
sed -i 's/NET_IF/eth0/' /etc/shorewall/params /etc/shorewall/interfaces
sed -i 's/STARTUP_ENABLED=No/STARTUP_ENABLED=Yes/' /etc/shorewall/shorewall.conf
echo 'ACCEPT net $FW tcp 80,443,8080,4143,4140,4190' >> /etc/shorewall/rules
mkdir -p /var/lib/shorewall /var/log /run/lock
shorewall start
