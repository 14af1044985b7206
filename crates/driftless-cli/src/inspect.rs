//! `driftless inspect`: what a file is and what it holds, without a model to check it against.

use crate::args::InspectArgs;
use crate::console::{Lines, counted};
use crate::failure::Failure;
use crate::files::{BadInput, Optimizer, TensorFile, parameter_names};
use bytes::Bytes;
use driftless_codec::{CanonicalBox, CodecError, LogSection, Section, SectionHeader};
use driftless_numerics::GroupStep;
use indicatif::HumanCount;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::iter;
use std::path::Path;

/// The first bytes of a section.
const SECTION_MAGIC: &[u8; 4] = b"DFS1";

/// What a file turned out to be.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Description {
    TrainerState { optimizer: OptimizerText, tensors: Vec<TensorText> },
    Policy { elements: u64, tensors: Vec<TensorText> },
    Sections { sections: Vec<SectionText> },
}

#[derive(Debug, Serialize)]
struct TensorText {
    name: String,
    dtype: String,
    shape: Vec<usize>,
}

#[derive(Debug, Serialize)]
struct OptimizerText {
    name: &'static str,
    moments: &'static str,
    family: String,
    amsgrad: bool,
    #[serde(flatten)]
    group: GroupText,
    no_decay_suffix: Option<String>,
    /// Parameters with values of their own.
    own: BTreeMap<String, GroupText>,
}

#[derive(Debug, PartialEq, Serialize)]
struct GroupText {
    step: u64,
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
}

#[derive(Debug, Serialize)]
struct SectionText {
    fragment: u32,
    codec: String,
    value_mode: String,
    dtype: String,
    n: u64,
    nnz: u64,
    base: Option<u64>,
    version: u64,
    base_digest: String,
    new_digest: String,
    bytes: u64,
    /// Where it lies in its parameter: of sections of a log.
    #[serde(skip_serializing_if = "Option::is_none")]
    area: Option<AreaText>,
}

#[derive(Debug, PartialEq, Serialize)]
struct AreaText {
    origin: Vec<u64>,
    extent: Vec<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> Result<(), Failure> {
    if let Some(target) = &args.json {
        target.check()?;
    }
    let description = describe(&args.file)?;
    if let Some(target) = &args.json {
        return target.write(&description);
    }
    for line in description.lines() {
        Lines::Stdout.write(&line);
    }
    Ok(())
}

fn describe(path: &Path) -> Result<Description, BadInput> {
    if starts_with_magic(path)? {
        return describe_sections(path);
    }
    let file = TensorFile::open(path)?;
    let tensors = file.tensors().iter().map(|(name, info)| TensorText {
        name: name.clone(),
        dtype: info.dtype.to_string(),
        shape: info.shape.clone(),
    });
    let tensors = tensors.collect();
    if !file.tensors().keys().any(|name| name.ends_with(".exp_avg")) {
        let elements = file.tensors().values().map(|info| info.shape.iter().product::<usize>() as u64).sum();
        return Ok(Description::Policy { elements, tensors });
    }
    let optimizer = Optimizer::parse(path, file.metadata(), &parameter_names(&file))?;
    Ok(Description::TrainerState { optimizer: OptimizerText::of(&optimizer), tensors })
}

fn starts_with_magic(path: &Path) -> Result<bool, BadInput> {
    let mut start = Vec::new();
    File::open(path)
        .and_then(|file| file.take(SECTION_MAGIC.len() as u64).read_to_end(&mut start))
        .map_err(|error| BadInput::file(path, error.to_string(), "a readable file"))?;
    Ok(start == SECTION_MAGIC)
}

fn describe_sections(path: &Path) -> Result<Description, BadInput> {
    let bad = |found: String| BadInput::file(path, found, "sections, back to back");
    let mut bytes = Bytes::from(fs::read(path).map_err(|error| bad(error.to_string()))?);
    let mut sections = Vec::new();
    while !bytes.is_empty() {
        let section = take_section(&mut bytes);
        sections.push(section.map_err(|error| bad(format!("a damaged section ({error})")))?);
    }
    Ok(Description::Sections { sections })
}

/// The section at the front of `bytes`. Only its checksum tells one of a log from one of a cluster.
fn take_section(bytes: &mut Bytes) -> Result<SectionText, CodecError> {
    let error = match Section::parse_any(bytes) {
        Ok(section) => return Ok(SectionText::of(section.header(), section.header().section_bytes(), None)),
        Err(error) => error,
    };
    // What begins with a box is most likely one of a log, and then its error is the one that helps.
    if LogSection::front(bytes).is_err() {
        return Err(error);
    }
    let section = LogSection::parse_any(bytes)?;
    Ok(SectionText::of(section.header(), section.bytes(), Some(section.area())))
}

impl OptimizerText {
    fn of(optimizer: &Optimizer) -> Self {
        let own = optimizer.params.overrides.iter();
        Self {
            name: optimizer.kind().name(),
            moments: optimizer.params.default.moments.name(),
            family: optimizer.params.family.to_string(),
            amsgrad: optimizer.amsgrad,
            group: GroupText::of(&optimizer.params.default),
            no_decay_suffix: optimizer.no_decay_suffix.clone(),
            own: own.map(|(name, group)| (name.to_string(), GroupText::of(group))).collect(),
        }
    }
}

impl GroupText {
    const fn of(group: &GroupStep) -> Self {
        let hyper = &group.hyper;
        Self {
            step: group.step,
            lr: hyper.lr,
            beta1: hyper.beta1,
            beta2: hyper.beta2,
            eps: hyper.eps,
            weight_decay: hyper.weight_decay,
        }
    }

    fn line(&self) -> String {
        self.values().join(", ")
    }

    /// The values that another group does not have.
    fn beside(&self, other: &Self) -> String {
        let values = self.values().into_iter().zip(other.values());
        let own: Vec<_> = values.filter(|(own, other)| own != other).map(|(own, _)| own).collect();
        own.join(", ")
    }

    fn values(&self) -> [String; 6] {
        [
            format!("step {}", self.step),
            format!("lr {:e}", self.lr),
            format!("beta1 {}", self.beta1),
            format!("beta2 {}", self.beta2),
            format!("eps {:e}", self.eps),
            format!("weight decay {}", self.weight_decay),
        ]
    }
}

impl SectionText {
    fn of(header: &SectionHeader, bytes: u64, area: Option<&CanonicalBox>) -> Self {
        Self {
            fragment: header.fragment,
            codec: header.codec.to_string(),
            value_mode: header.value_mode.to_string(),
            dtype: header.dtype.to_string(),
            n: header.n,
            nnz: header.nnz,
            base: header.base.map(|base| base.0),
            version: header.version.0,
            base_digest: header.base_digest.to_string(),
            new_digest: header.new_digest.to_string(),
            bytes,
            area: area
                .map(|area| AreaText { origin: area.origin().collect(), extent: area.extent().collect() }),
        }
    }

    fn line(&self) -> String {
        let base = self.base.map_or_else(|| "no base".to_owned(), |base| format!("base v{base}"));
        let place = match &self.area {
            Some(area) => format!("parameter {} at {:?} {:?}", self.fragment, area.origin, area.extent),
            None => format!("fragment {}", self.fragment),
        };
        let bits = match self.nnz {
            0 => String::new(),
            nnz => format!(", {:.2} bits per change", 8.0 * self.bytes as f64 / nnz as f64),
        };
        format!(
            "{place}: {} {} {}, {} of {} elements, {base}, v{}, digests {} to {}, {} bytes{bits}",
            self.codec,
            self.value_mode,
            self.dtype,
            self.nnz,
            self.n,
            self.version,
            self.base_digest,
            self.new_digest,
            self.bytes
        )
    }
}

impl Description {
    fn lines(&self) -> Vec<String> {
        match self {
            Self::TrainerState { optimizer, tensors } => {
                let mut lines = vec![
                    format!("trainer state, {}", counted(tensors.len(), "tensor")),
                    format!(
                        "{}, family {}, moments {}, amsgrad {}",
                        optimizer.name, optimizer.family, optimizer.moments, optimizer.amsgrad
                    ),
                    optimizer.group.line(),
                ];
                lines.extend(own_lines(optimizer));
                lines.extend(tensor_lines(tensors));
                lines
            }
            Self::Policy { elements, tensors } => {
                let (count, elements) = (counted(tensors.len(), "tensor"), HumanCount(*elements));
                let mut lines = vec![format!("policy, {count}, {elements} elements")];
                lines.extend(tensor_lines(tensors));
                lines
            }
            Self::Sections { sections } => sections.iter().map(SectionText::line).collect(),
        }
    }
}

/// Parameters with values of their own, and these alone.
fn own_lines(optimizer: &OptimizerText) -> Vec<String> {
    let differing = optimizer.own.iter().filter(|(_, group)| **group != optimizer.group);
    let own: Vec<_> = differing.map(|(name, group)| (name, group.beside(&optimizer.group))).collect();
    let width = own.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = own.iter().map(|(name, values)| format!("  {name:<width$}  {values}"));
    let title = (!own.is_empty()).then(|| "with values of their own:".to_owned());
    title.into_iter().chain(lines).collect()
}

fn tensor_lines(tensors: &[TensorText]) -> Vec<String> {
    let width = tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
    let line =
        |tensor: &TensorText| format!("  {:<width$}  {:<4}  {:?}", tensor.name, tensor.dtype, tensor.shape);
    iter::once("tensors:".to_owned()).chain(tensors.iter().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use driftless_codec::{
        LogChanges, LogSectionPlan, LogSectionStart, SectionStart, StepKnowledge, encode_section,
    };
    use driftless_numerics::StepClass;
    use driftless_types::{ChangeSet, Digest, Dtype, ParamId, Version};

    fn section_file(folder: &Path) -> std::path::PathBuf {
        let changes = ChangeSet::Sparse { positions: vec![3, 9], values: vec![1, 2] };
        let (base_digest, new_digest) = (Digest([1; 4]), Digest([2; 4]));
        let (n, base, version) = (4096, Some(Version(4)), Version(5));
        let start =
            SectionStart { fragment: 11, dtype: Dtype::Bf16, n, base, version, base_digest, new_digest };
        let mut bytes = Vec::new();
        encode_section(&start, &changes, &mut bytes);
        encode_section(&SectionStart { fragment: 12, ..start }, &changes, &mut bytes);
        let path = folder.join("two.section");
        fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn a_section_file_lists_every_section() {
        let folder = tempfile::tempdir().unwrap();
        let Description::Sections { sections } = describe(&section_file(folder.path())).unwrap() else {
            panic!("not taken for sections");
        };
        assert_eq!(sections.iter().map(|s| s.fragment).collect::<Vec<_>>(), [11, 12]);
        assert_eq!(
            (sections[0].n, sections[0].nnz, sections[0].base, sections[0].version),
            (4096, 2, Some(4), 5)
        );
        assert_eq!(sections[0].new_digest, Digest([2; 4]).to_string());
    }

    #[test]
    fn a_damaged_section_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = section_file(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 20;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(describe(&path).unwrap_err().to_string().contains("damaged section"));
    }

    #[test]
    fn a_blob_of_a_log_says_where_its_sections_lie() {
        let folder = tempfile::tempdir().unwrap();
        let start = LogSectionStart {
            param: ParamId(3),
            dtype: Dtype::Bf16,
            area: CanonicalBox::new(&[8, 0], &[100, 1000]).unwrap(),
            base: Some(Version(4)),
            version: Version(5),
            base_digest: Digest::ZERO,
            new_digest: Digest([2; 4]),
        };
        let positions: Vec<u32> = (0..1000).map(|i| 100 * i).collect();
        let (values, classes) = (vec![0x3c01; 1000], vec![StepClass::Unit; 1000]);
        let knowledge = StepKnowledge::Classes(&classes);
        let mut bytes = Vec::new();
        let changes = LogChanges::Sparse { positions: &positions, values: &values, knowledge };
        LogSectionPlan::new(&start, changes).write(&mut bytes);
        LogSectionPlan::new(&start, LogChanges::All(&vec![1; 100_000])).write(&mut bytes);
        let path = folder.path().join("a.blob");
        fs::write(&path, &bytes).unwrap();
        let Description::Sections { sections } = describe(&path).unwrap() else {
            panic!("not taken for sections");
        };
        let line = sections[0].line();
        assert!(
            line.starts_with("parameter 3 at [8, 0] [100, 1000]: rice congruence BF16, 1000 of"),
            "{line}"
        );
        assert!(line.ends_with("bits per change"), "{line}");
        assert_eq!(sections.iter().map(|section| section.bytes).sum::<u64>(), bytes.len() as u64);
        assert_eq!(sections[1].codec, "dense");
        let last = bytes.len() - 20;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(describe(&path).unwrap_err().to_string().contains("damaged section (the checksum is"));
    }
}
