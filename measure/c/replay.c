/*
 * The floor: sends a netlink batch and reads the kernel's answers, and does nothing else.
 *
 * The benchmark writes the batch into the file before it runs it: it finds the place by the mark. So the bytes are in
 * the program's memory, as they would be if they had been compiled in.
 */
#include <errno.h>
#include <linux/netlink.h>
#include <sys/socket.h>

/* Not const, or the compiler would take the length for 0. */
static volatile struct {
	char mark[16];
	unsigned int length;
	unsigned char bytes[16384];
} batch = { .mark = "batch goes here" };

int main(void)
{
	static char answer[65536];
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	unsigned int length = batch.length;
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);

	if (sendto(fd, (void *)batch.bytes, length, 0, (struct sockaddr *)&kernel, sizeof(kernel)) != length)
		return 1;
	for (;;) {
		long received = recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
		struct nlmsghdr *header = (struct nlmsghdr *)answer;

		if (received < 0)
			return errno == EAGAIN ? 0 : 1;
		if (header->nlmsg_type == NLMSG_ERROR && ((struct nlmsgerr *)NLMSG_DATA(header))->error != 0)
			return 1;
	}
}
