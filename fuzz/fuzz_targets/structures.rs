//! Versioned structures of C callers.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: oxccl_runtime::log::set(0, None),
    |data: &[u8]| oxccl_tests::hostile::structures(data)
);
