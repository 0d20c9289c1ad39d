# fail2ban's actions iptables-multiport and iptables-allports, with the neighbour banned from port 443:
# https://github.com/fail2ban/fail2ban/tree/master/config/action.d
iptables -N f2b-web
iptables -A f2b-web -j RETURN
iptables -I INPUT -p tcp -m multiport --dports 80,443,4143 -j f2b-web
iptables -I f2b-web 1 -s 10.77.0.9 -j REJECT --reject-with icmp-port-unreachable
iptables -N f2b-recidive
iptables -A f2b-recidive -j RETURN
iptables -I INPUT -p tcp -j f2b-recidive
iptables -I f2b-recidive 1 -s 192.0.2.1 -j REJECT --reject-with icmp-port-unreachable
