//! Good inputs of every kind, and ways to damage them that get past a checksum.

use driftless_codec::entry::{Role, SecretKey, SignedEntry, Signer, TrustedKeys, encode_writers};
use driftless_codec::{
    CanonicalBox, FragmentRecord, LogChanges, LogSectionPlan, LogSectionStart, SectionStart, StepKnowledge,
    encode_section,
};
use driftless_numerics::StepClass;
use driftless_types::{
    BlobRef, ChangeSet, Digest, Dtype, Entry, EntryKind, ObjectDigest, ParamId, Publication, Seq, StreamId,
    Version, WriterManifest, Writers,
};
use xxhash_rust::xxh3::xxh3_64;

/// Where a section's body begins: without a box, and with one of one and of two axes.
const FRONTS: [usize; 3] = [88, 88 + 24, 88 + 40];

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![cluster_section(), log_section(20_000), log_section(70_000), log_section(1 << 21)];
    seeds.extend(dense_section());
    seeds.extend(objects());
    seeds.extend(tables());
    let record = FragmentRecord::announcing(Dtype::Bf16, 9, &ChangeSet::All(vec![0; 9]), Digest([1; 4]));
    seeds.push([record.encode(), FragmentRecord::unchanged(Digest::ZERO).encode()].concat());
    seeds
}

fn cluster_section() -> Vec<u8> {
    let (base_digest, new_digest) = (Digest::ZERO, Digest([1; 4]));
    let (n, base, version) = (131_075, None, Version(1));
    let start = SectionStart { fragment: 0, dtype: Dtype::Bf16, n, base, version, base_digest, new_digest };
    let mut out = Vec::new();
    let changes = ChangeSet::Sparse { positions: vec![5, 9, 131_074], values: vec![1, 2, 3] };
    encode_section(&start, &changes, &mut out);
    out
}

fn start(n: u64) -> LogSectionStart {
    LogSectionStart {
        param: ParamId(7),
        dtype: Dtype::Bf16,
        area: CanonicalBox::whole(&[n]).expect("a row"),
        base: Some(Version(6)),
        version: Version(7),
        base_digest: Digest::ZERO,
        new_digest: Digest::ZERO,
    }
}

/// A congruence section with all three lists, then an absolute one.
fn log_section(n: u32) -> Vec<u8> {
    let positions: Vec<u32> = (0..150).map(|i| i * (n / 150) + i % 7).collect();
    let values: Vec<u16> = (0..150).map(|i| 0x3c00 + 3 * i).collect();
    let class = |i: usize| {
        [StepClass::Unit, StepClass::Unit, StepClass::Near, StepClass::Unit, StepClass::Far][i % 5]
    };
    let classes: Vec<StepClass> = (0..150).map(class).collect();
    let start = start(n.into());
    let mut out = Vec::new();
    for knowledge in [StepKnowledge::Classes(&classes), StepKnowledge::Nothing] {
        let changes = LogChanges::Sparse { positions: &positions, values: &values, knowledge };
        LogSectionPlan::new(&start, changes).write(&mut out);
    }
    out
}

fn dense_section() -> Option<Vec<u8>> {
    let area = CanonicalBox::new(&[1, 2], &[3, 5]).ok()?;
    let start = LogSectionStart { area, base: None, ..start(1) };
    let mut out = Vec::new();
    LogSectionPlan::new(&start, LogChanges::All(&[9; 15])).write(&mut out);
    Some(out)
}

fn objects() -> [Vec<u8>; 3] {
    let blob = BlobRef { digest: ObjectDigest([1; 32]), stored_bytes: 160, raw_bytes: 160 };
    let publication = Publication {
        version: Version(12),
        writer_count: 1,
        writers: Writers::Inline(vec![WriterManifest { rank: 0, blobs: vec![blob], nnz: 9 }]),
        digests: blob,
    };
    let delta = EntryKind::Delta { base_version: Version(11), publication };
    let kinds = [delta, EntryKind::Epoch, EntryKind::Retire { keep_from: Seq(1), anchors: vec![] }];
    kinds.map(|kind| {
        let entry = Entry {
            stream: StreamId([1; 16]),
            seq: Seq(5),
            epoch: 3,
            created_by: 9,
            parent: ObjectDigest([2; 32]),
            kind,
        };
        SignedEntry::seal(&entry, &Signer::Unsigned).expect("an entry").to_vec()
    })
}

fn tables() -> [Vec<u8>; 4] {
    let key = SecretKey::from_seed(&[1; 32]);
    let writers = [WriterManifest { rank: 0, blobs: vec![], nnz: 0 }];
    [
        encode_writers(&writers).expect("a writer"),
        br#"[{"dtype":"BF16","name":"a","shape":[2,3]},{"dtype":"F32","name":"b","shape":[]}]"#.to_vec(),
        TrustedKeys::new(key.public(), Role::Publisher).print_file().into_bytes(),
        key.print_file().into_bytes(),
    ]
}

/// A source of damaged copies: the same seed makes the same ones.
pub(crate) struct Damage(u64);

impl Damage {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One to four edits, and after three of four times a checksum that fits again.
    pub(crate) fn of(&mut self, good: &[u8]) -> Vec<u8> {
        let mut bytes = good.to_vec();
        for _ in 0..=self.below(4) {
            self.edit(&mut bytes);
        }
        if self.below(4) > 0 {
            let front = FRONTS[self.below(3)];
            reseal(&mut bytes, front);
        }
        bytes
    }

    fn edit(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        // Half of the edits go to the headers, where the lengths are.
        let range = if self.below(2) == 0 { bytes.len() } else { bytes.len().min(180) };
        let at = self.below(range);
        let odd = [0, 1, 2, 0x7f, 0x80, 0xff, b'"', b','][self.below(8)];
        match self.below(6) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = odd,
            2 => bytes[at] = bytes[at].wrapping_add(1),
            3 => {
                let end = (at + 4).min(bytes.len());
                bytes[at..end].fill(odd);
            }
            4 => {
                bytes.remove(at);
            }
            _ => {
                let copied: Vec<u8> = bytes[at..(at + 8).min(bytes.len())].to_vec();
                bytes.splice(at..at, copied);
            }
        }
    }

    fn below(&mut self, end: usize) -> usize {
        // An odd multiplier and the high bits: enough to choose edits by.
        self.0 = self.0.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x2545_f491_4f6c_dd1d);
        usize::try_from((self.0 >> 33) % end as u64).expect("less than an index")
    }
}

/// Gives a section whose body begins at `front` the checksum that belongs to it, if it has room for one.
fn reseal(bytes: &mut [u8], front: usize) {
    let Some(length) = bytes.get(80..88).and_then(|length| length.first_chunk()) else { return };
    let end = usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|body| body.checked_add(front));
    let Some(end) = end.filter(|end| end.checked_add(8).is_some_and(|tail| tail <= bytes.len())) else {
        return;
    };
    let checksum = xxh3_64(&bytes[..end]);
    bytes[end..end + 8].copy_from_slice(&checksum.to_le_bytes());
}
