#![no_main]

use covault_mpc::fuzz;

libfuzzer_sys::fuzz_target!(
    init: {
        fuzz::expect_panics();
        // Reads shares and begins a signature, which takes a while: no input should count for it.
        if let Err(finding) = fuzz::cggmp24_sign(&[0]) {
            panic!("{finding}");
        }
    },
    |data: &[u8]| {
        if let Err(finding) = fuzz::cggmp24_sign(data) {
            panic!("{finding}");
        }
    }
);
