//! Every reader of what others write, on whatever the fuzzer thinks of.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| proxy_init::fuzzed::read_all(input));
