/*
 * Runs commands one after another, and prints what they took: "WALL PROCESSOR MEMORY", in nanoseconds from the first
 * one's spawn to the last one's exit, in microseconds of their processor time, and in KiB of the largest one's memory.
 *
 *     run CGROUP STDIN PROGRAM ARGUMENT... [";" STDIN PROGRAM ARGUMENT...]...
 *
 * CGROUP is the cgroup.procs file of the cgroup to do it in, or "-". STDIN is a file. stdout is thrown away.
 *
 * It is a program of its own, small and static, because Linux counts what a process was before it became another program
 * in that program's ru_maxrss: exec_mmap() in fs/exec.c keeps the old memory's high-water mark. The child of a large
 * parent would be as large as its parent. And it alone is in the cgroup with the commands.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long microseconds(struct timeval time)
{
	return time.tv_sec * 1000000LL + time.tv_usec;
}

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int count, char **words)
{
	long long start, processor = 0;
	long memory = 0;
	int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (count < 4 || nowhere < 0)
		return 2;
	if (strcmp(words[1], "-") != 0) {
		int cgroup = open(words[1], O_WRONLY | O_CLOEXEC);

		if (cgroup < 0 || write(cgroup, "0", 1) != 1) {
			fprintf(stderr, "%s: %s\n", words[1], strerror(errno));
			return 2;
		}
		close(cgroup);
	}
	start = now();
	for (int word = 2; word + 1 < count; word++) {
		char **command = words + word;
		struct rusage usage;
		int status;
		pid_t child;

		while (word < count && strcmp(words[word], ";") != 0)
			word++;
		words[word] = NULL;
		child = vfork();
		if (child == 0) {
			int input = open(command[0], O_RDONLY);

			if (input < 0 || dup2(input, 0) < 0 || (input != 0 && close(input) < 0) || dup2(nowhere, 1) < 0)
				_exit(126);
			execv(command[1], command + 1);
			_exit(127);
		}
		if (child < 0 || wait4(child, &status, 0, &usage) != child)
			return 2;
		if (status != 0) {
			fprintf(stderr, "%s: ", command[1]);
			if (WIFEXITED(status))
				fprintf(stderr, "exit code %d\n", WEXITSTATUS(status));
			else
				fprintf(stderr, "signal %d\n", WTERMSIG(status));
			return 1;
		}
		processor += microseconds(usage.ru_utime) + microseconds(usage.ru_stime);
		if (usage.ru_maxrss > memory)
			memory = usage.ru_maxrss;
	}
	printf("%lld %lld %ld\n", now() - start, processor, memory);
	return 0;
}
