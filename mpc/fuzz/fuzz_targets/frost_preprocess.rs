#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(finding) = covault_mpc::fuzz::preprocess(data) {
        panic!("{finding}");
    }
});
