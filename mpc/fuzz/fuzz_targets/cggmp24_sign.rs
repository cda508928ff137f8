#![no_main]

use covault_mpc::fuzz;

libfuzzer_sys::fuzz_target!(
    init: {
        fuzz::expect_panics();
        // An honest signature is made first; it takes seconds, which no input should count for.
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
