//! How long requests take, through the `metrics` facade: it costs next to nothing where no recorder is installed. Labels come
//! from fixed lists.

use std::time::Duration;

use covault_core::scheme::Scheme;
use metrics::{Unit, describe_histogram, histogram};

/// The name of the histogram.
pub const REQUEST_SECONDS: &str = "covault_request_seconds";

/// A part of the life of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStage {
    /// Until people have approved it.
    Wait,
    /// Until its transaction is built: its chain's nodes were asked, and its turn came.
    Build,
    /// Until it is signed.
    Sign,
    /// Until a node has its transaction.
    Broadcast,
    /// From its creation until it has succeeded.
    All,
}

impl RequestStage {
    fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Build => "build",
            Self::Sign => "sign",
            Self::Broadcast => "broadcast",
            Self::All => "all",
        }
    }
}

/// Tells the recorder what the numbers mean. Call it once, after the recorder is installed.
pub fn describe() {
    describe_histogram!(
        REQUEST_SECONDS,
        Unit::Seconds,
        "How long requests took, by the scheme of their key and by stage: wait (for people), build, sign, broadcast, and \
         all of it for those that succeeded"
    );
}

/// A request has taken so long for a stage.
pub(crate) fn request_stage(scheme: Scheme, stage: RequestStage, took: Duration) {
    histogram!(REQUEST_SECONDS, "scheme" => scheme.name(), "stage" => stage.name()).record(took);
}
