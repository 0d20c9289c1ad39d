# Debian's ufw, with all ports open that are used here. What ufw-init does of the sysctls is left out.
cp /usr/share/ufw/iptables/*.rules /usr/share/ufw/ufw.conf /etc/ufw/
sed -i 's/^IPT_SYSCTL=.*/IPT_SYSCTL=/' /etc/default/ufw
python3 /usr/sbin/ufw allow proto tcp from any to any port 80,443,8080,4143,4140,4190
python3 /usr/sbin/ufw limit 22/tcp
python3 /usr/sbin/ufw --force enable
