//! Every reader of what runtimes, users and Kubernetes write for the CNI plugin, on whatever the fuzzer thinks of.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| linkerd_cni::fuzzed::read_all(input));
