#![no_main]

use covault_core::scheme::Scheme;
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(finding) = covault_mpc::fuzz::reshare(Scheme::Dkls23, data) {
        panic!("{finding}");
    }
});
