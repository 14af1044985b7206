//! Where tests find a real S3 server.

use crate::StreamUrl;
use std::io::Write;
use uuid::Uuid;

/// The bucket that tests may use, such as `s3://driftless`.
const URL_VARIABLE: &str = "DRIFTLESS_S3_URL";
/// Set where tests on S3 must not be skipped.
const REQUIRE_VARIABLE: &str = "DRIFTLESS_REQUIRE_S3";

/// The address of a new stream on a real S3 server, or `None` where there is none: then the caller returns, and this
/// has said so on standard error. `.ci/s3.sh COMMAND` runs a command beside a server.
///
/// # Panics
/// If there is none although the environment requires one, or its address cannot be used.
#[must_use]
pub fn s3() -> Option<StreamUrl> {
    let Ok(bucket) = std::env::var(URL_VARIABLE) else {
        let is_required = std::env::var_os(REQUIRE_VARIABLE).is_some();
        let way_out = "run the tests as `.ci/s3.sh cargo test ..`";
        assert!(!is_required, "{URL_VARIABLE} is not set, and {REQUIRE_VARIABLE} is: {way_out}");
        // Past the test harness, which hides what passing tests print.
        let _ = writeln!(std::io::stderr(), "SKIPPED on S3: {URL_VARIABLE} is not set; {way_out}");
        return None;
    };
    let url = format!("{}/{}", bucket.trim_end_matches('/'), Uuid::new_v4().simple());
    Some(url.parse().expect("the bucket's address can be used"))
}
