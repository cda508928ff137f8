#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    covault_core_fuzz::evm_block(data);
});
