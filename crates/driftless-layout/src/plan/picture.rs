//! Who sends what to whom, as an SVG: a row for each sender, a column for each receiver, a bar in each cell.
//!
//! A bar is as long as the bytes of its edge, against those of the largest edge, and its colors are kinds of
//! parameters. Only names that layouts make go into it, in which nothing needs escaping.

use super::summary::{Bytes, bytes, edge_bytes};
use super::{Edge, RemapPlan, ReplicaPlan};
use driftless_types::ReceiverId;
use std::collections::BTreeMap;
use std::fmt::Write;

const CELL_WIDTH: u64 = 36;
const CELL_HEIGHT: u64 = 14;
const REPLICA_GAP: u64 = 8;
const LEFT: u64 = 200;
const TOP: u64 = 150;
const MARGIN: u64 = 16;
/// Room for the name of the last column, which rises to the right.
const OVERHANG: u64 = 60;

/// A kind of parameters, with its color.
struct Kind {
    name: &'static str,
    color: &'static str,
}

const KINDS: [Kind; 5] = [
    Kind { name: "embedding and output", color: "#4e79a7" },
    Kind { name: "attention", color: "#f28e2b" },
    Kind { name: "dense MLP", color: "#59a14f" },
    Kind { name: "experts", color: "#b07aa1" },
    Kind { name: "norms, routers, others", color: "#9c9c9c" },
];

fn kind(fqn: &str) -> usize {
    let has = |part: &str| fqn.contains(part);
    match () {
        () if has("embed_tokens") || has("lm_head") => 0,
        () if has(".self_attn.") && has("_proj.") => 1,
        () if has(".experts.") => 3,
        () if has(".mlp.") && has("_proj.") => 2,
        () => 4,
    }
}

/// The whole picture.
pub(super) fn svg(plan: &RemapPlan) -> String {
    let columns = columns(plan);
    let right = columns.values().max().map_or(LEFT, |x| x + CELL_WIDTH);
    let bottom = TOP + CELL_HEIGHT * plan.senders().len() as u64;
    let layouts = layouts(plan);
    let mut picture = Picture { text: String::new() };
    let height = bottom + 3 * MARGIN + CELL_HEIGHT * layouts.len() as u64;
    picture.open(right.max(LEFT + 500) + OVERHANG, height);
    picture.title(plan);
    for replica in plan.replicas() {
        for receiver in &replica.receivers {
            let x = columns[&receiver.id] + CELL_WIDTH / 2 + 3;
            picture.rotated(x, TOP - 6, &receiver.name);
        }
        if let [first, .., last] | [first @ last] = &replica.receivers[..] {
            let (from, to) = (columns[&first.id], columns[&last.id] + CELL_WIDTH);
            picture.frame([from, to], bottom);
        }
    }
    let edges = || plan.senders().iter().flat_map(|sender| &sender.edges);
    let most = edges().map(edge_bytes).max().unwrap_or(1).max(1);
    for (row, sender) in (0..).zip(plan.senders()) {
        let y = TOP + row * CELL_HEIGHT;
        let owned: u64 = plan.owned_bytes(sender);
        picture.label(LEFT - 6, y + CELL_HEIGHT - 4, &format!("{} owns {}", sender.name, Bytes(owned)));
        for edge in &sender.edges {
            let about = format!("{} to {}", sender.name, plan.receiver(edge.receiver).name);
            picture.cell(plan, edge, &about, [columns[&edge.receiver], y], most);
        }
    }
    picture.legend(bottom + 2 * MARGIN);
    for (line, layout) in (1..).zip(layouts) {
        picture.plain(MARGIN, bottom + 2 * MARGIN + line * CELL_HEIGHT, &layout);
    }
    picture.text.push_str("</svg>\n");
    picture.text
}

/// The trainer's layout, then a line for each run of replicas that are laid out alike.
fn layouts(plan: &RemapPlan) -> Vec<String> {
    let runs = plan.replicas().chunk_by(|a, b| a.layout == b.layout);
    let line = |run: &[ReplicaPlan]| match run {
        [first, .., last] => format!("rollout{} to rollout{}: {}", first.id, last.id, first.layout),
        run => format!("rollout{}: {}", run[0].id, run[0].layout),
    };
    std::iter::once(format!("trainer: {}", plan.trainer())).chain(runs.map(line)).collect()
}

/// Where the column of each receiver begins.
fn columns(plan: &RemapPlan) -> BTreeMap<ReceiverId, u64> {
    let mut columns = BTreeMap::new();
    let mut x = LEFT;
    for replica in plan.replicas() {
        for receiver in &replica.receivers {
            columns.insert(receiver.id, x);
            x += CELL_WIDTH;
        }
        x += REPLICA_GAP;
    }
    columns
}

struct Picture {
    text: String,
}

impl Picture {
    /// Appends a line; writing to a text cannot fail.
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.text, "{line}");
    }

    fn open(&mut self, width: u64, height: u64) {
        self.line(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"10\" fill=\"#333\">"
        ));
        self.line(format_args!("<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"));
    }

    fn title(&mut self, plan: &RemapPlan) {
        let summary = plan.summary();
        let digest = &plan.digest().to_string()[..12];
        self.line(format_args!("<text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">Plan {digest}</text>"));
        self.line(format_args!(
            "<text x=\"{MARGIN}\" y=\"40\">{} senders, {} receivers in {} replicas, {} edges, {} fragments, {} at all \
             receivers; the longest bar is {}</text>",
            summary.senders,
            summary.receivers,
            summary.replicas,
            summary.edges,
            summary.fragments,
            Bytes(summary.received_bytes),
            Bytes(summary.bytes_per_edge.most),
        ));
    }

    /// Text that ends at `x`.
    fn label(&mut self, x: u64, y: u64, text: &str) {
        self.line(format_args!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{text}</text>"));
    }

    /// Text that rises from (`x`, `y`).
    fn rotated(&mut self, x: u64, y: u64, text: &str) {
        self.line(format_args!("<text transform=\"translate({x} {y}) rotate(-60)\">{text}</text>"));
    }

    fn plain(&mut self, x: u64, y: u64, text: &str) {
        self.line(format_args!("<text x=\"{x}\" y=\"{y}\">{text}</text>"));
    }

    /// The frame around a replica's columns.
    fn frame(&mut self, [from, to]: [u64; 2], bottom: u64) {
        self.line(format_args!(
            "<rect x=\"{from}\" y=\"{TOP}\" width=\"{}\" height=\"{}\" fill=\"#f6f6f6\" stroke=\"#ccc\"/>",
            to - from,
            bottom - TOP
        ));
    }

    /// One edge: a bar with a segment for each kind.
    fn cell(&mut self, plan: &RemapPlan, edge: &Edge, about: &str, [x, y]: [u64; 2], most: u64) {
        let mut of_kinds = [0; KINDS.len()];
        for fragment in &edge.fragments {
            let kind = kind(plan.param(fragment.param).fqn.as_str());
            of_kinds[kind] += bytes(fragment.dtype, fragment.elements());
        }
        let all: u64 = of_kinds.iter().sum();
        let mut told = format!("{about}: {} in {} fragments", Bytes(all), edge.fragments.len());
        let mut bars = String::new();
        // In hundredths of a pixel, and never less than half of one: every edge can be seen.
        let hundredths = |bytes: u64| u128::from(bytes) * u128::from(CELL_WIDTH - 2) * 100 / u128::from(most);
        let mut start = u128::from(x + 1) * 100;
        for (kind, bytes) in KINDS.iter().zip(of_kinds).filter(|(_, bytes)| *bytes > 0) {
            let _ = write!(told, "; {} {}", kind.name, Bytes(bytes));
            let width = hundredths(bytes).max(50);
            let _ = write!(
                bars,
                "<rect x=\"{}.{:02}\" y=\"{}\" width=\"{}.{:02}\" height=\"{}\" fill=\"{}\"/>",
                start / 100,
                start % 100,
                y + 2,
                width / 100,
                width % 100,
                CELL_HEIGHT - 4,
                kind.color
            );
            start += width;
        }
        self.line(format_args!("<g><title>{told}</title>{bars}</g>"));
    }

    fn legend(&mut self, y: u64) {
        let mut x = MARGIN;
        for kind in &KINDS {
            let color = kind.color;
            self.line(format_args!(
                "<rect x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
                 <text x=\"{}\" y=\"{y}\">{}</text>",
                y - 9,
                x + 14,
                kind.name
            ));
            x += 30 + 6 * kind.name.len() as u64;
        }
    }
}
