//! Handles, streams of messages, and notices.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: oxccl_runtime::log::set(0, None),
    |data: &[u8]| oxccl_tests::hostile::message(data)
);
