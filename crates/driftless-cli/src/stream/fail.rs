//! Faults of the own process, for those who test what a death leaves behind.

use driftless::{Failpoints, Fault, Site};
use std::str::FromStr;

/// A fault as text: `SITE=kill` or `SITE=stop`, then optionally `@N` for the N-th pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailpointArg {
    site: Site,
    fault: Fault,
    passes: u32,
}

impl FailpointArg {
    /// Arms it.
    pub(crate) fn arm(self, failpoints: &Failpoints) {
        failpoints.arm(self.site, None, self.fault, self.passes);
    }
}

impl FromStr for FailpointArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let sites: Vec<String> = Site::LOG.iter().map(|&site| name(site)).collect();
            format!(
                "expected SITE=kill or SITE=stop, with @N for the N-th pass; sites are {}",
                sites.join(", ")
            )
        };
        let (site, fault) = text.split_once('=').ok_or_else(wrong)?;
        let (fault, pass) = fault.split_once('@').unwrap_or((fault, "1"));
        let site = Site::LOG.into_iter().find(|&known| name(known) == site).ok_or_else(wrong)?;
        let fault = match fault {
            "kill" => Fault::KillProcess,
            "stop" => Fault::StopProcess,
            _ => return Err(wrong()),
        };
        let passes = pass.parse::<u32>().ok().and_then(|pass| pass.checked_sub(1)).ok_or_else(wrong)?;
        Ok(Self { site, fault, passes })
    }
}

/// `PublisherPuts` as `publisher-puts`.
fn name(site: Site) -> String {
    let mut name = String::new();
    for letter in format!("{site:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_its_site_what_happens_and_when() {
        let arg = |text: &str| text.parse::<FailpointArg>();
        let expected = FailpointArg { site: Site::PublisherPuts, fault: Fault::KillProcess, passes: 2 };
        assert_eq!(arg("publisher-puts=kill@3"), Ok(expected));
        assert_eq!(arg("publisher-puts=kill"), Ok(FailpointArg { passes: 0, ..expected }));
        for bad in ["publisher-puts", "publisher=kill", "publisher-puts=panic", "publisher-puts=kill@0"] {
            assert!(arg(bad).expect_err(bad).contains("follower-writes"));
        }
    }
}
