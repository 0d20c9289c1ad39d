/*
 * The floor: sends a recorded netlink batch and reads the kernel's answers, and does nothing else.
 * Built with BATCH_FILE, the bytes as a C array; with EMPTY it does nothing at all.
 */
#ifdef EMPTY
int main(void) { return 0; }
#else
#include <errno.h>
#include <linux/netlink.h>
#include <sys/socket.h>

static const unsigned char batch[] = {
#include BATCH_FILE
};

int main(void)
{
	static char answer[65536];
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);

	if (sizeof(batch) > 65536) {
		int size = sizeof(batch) + 32;
		setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	}
	if (sendto(fd, batch, sizeof(batch), 0, (struct sockaddr *)&kernel, sizeof(kernel)) != sizeof(batch))
		return 1;
	for (;;) {
		long length = recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
		struct nlmsghdr *header = (struct nlmsghdr *)answer;

		if (length < 0)
			return errno == EAGAIN ? 0 : 1;
		if (header->nlmsg_type == NLMSG_ERROR && ((struct nlmsgerr *)NLMSG_DATA(header))->error != 0)
			return 1;
	}
}
#endif
