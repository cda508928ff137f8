#![no_main]

libfuzzer_sys::fuzz_target!(init: covault_mpc::fuzz::expect_panics(), |data: &[u8]| {
    if let Err(finding) = covault_mpc::fuzz::cggmp24_keygen(data) {
        panic!("{finding}");
    }
});
