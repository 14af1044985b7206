//! `driftless demo --chaos SEED`: before every version a fault is armed somewhere; a seed gives the same faults again.

use driftless::{Failpoints, Fault, Member, NodeOptions, Site};
use driftless_layout::RemapPlan;
use std::panic;

/// Arms faults, one per version.
pub(crate) struct Chaos {
    failpoints: Failpoints,
    members: Vec<Member>,
    random: u64,
}

impl Chaos {
    /// Chaos among the ranks of a plan.
    pub(crate) fn new(plan: &RemapPlan, seed: u64) -> Self {
        silence_failpoints();
        let senders = plan.senders().iter().map(|sender| Member::Sender(sender.id));
        let receivers = plan.replicas().iter().flat_map(|replica| &replica.receivers);
        let members = senders.chain(receivers.map(|receiver| Member::Receiver(receiver.id))).collect();
        Self { failpoints: Failpoints::default(), members, random: seed }
    }

    /// What the node must be started with: here actors die more often than a healthy node allows.
    pub(crate) fn options(&self) -> NodeOptions {
        NodeOptions { failpoints: self.failpoints.clone(), restarts_max: u32::MAX, ..NodeOptions::default() }
    }

    /// Arms the next fault, and says which.
    pub(crate) fn strike(&mut self) -> String {
        let site = *self.pick(&Site::ALL);
        let fault = *self.pick(&[Fault::Kill, Fault::Panic, Fault::Error]);
        let passes = *self.pick(&[0, 1, 2]);
        let fits: Vec<Member> = self.members.iter().copied().filter(|member| meets(site, *member)).collect();
        let member = (!fits.is_empty()).then(|| *self.pick(&fits));
        self.failpoints.arm(site, member, fault, passes);
        let whom = member.map_or_else(|| "whoever comes".to_owned(), |member| member.to_string());
        format!("chaos: {fault:?} for {whom} at {site:?}, after {passes} passes")
    }

    fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        // splitmix64: small, and the same everywhere.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let index = (z ^ (z >> 31)) % among.len() as u64;
        &among[driftless_types::index_of(index)]
    }
}

/// Whether a member can pass a site.
const fn meets(site: Site, member: Member) -> bool {
    match (site, member) {
        (Site::ShardDetects | Site::ShardEncodes | Site::ShardSends, Member::Sender(_)) => true,
        (Site::LeadPauses | Site::LeadHearsApplied | Site::LeadResumes, Member::Receiver(receiver)) => {
            receiver.is_lead()
        }
        (
            Site::ReceiverBegins
            | Site::ReceiverStages
            | Site::ReceiverApplies
            | Site::ReceiverScatters
            | Site::ReceiverDecides,
            Member::Receiver(_),
        ) => true,
        _ => false,
    }
}

/// A panic that was ordered is no news; any other is reported as before.
fn silence_failpoints() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>();
        if !text.is_some_and(|text| text.starts_with("failpoint ")) {
            report(info);
        }
    }));
}
