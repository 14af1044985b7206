//! A stream's weights in memory, parameter by parameter: every publication is applied to them and proven.
//!
//! It is independent of how a reader takes its part into an engine: whole parameters, one copy, hashed anew.

use driftless::log::{
    BaseWords, CodecError, LogIo, LogIoError, LogSection, LogView, NotApplied, StoreError, Stored,
    StreamModel, sections,
};
use driftless_layout::ParamMeta;
use driftless_numerics::DigestKeys;
use driftless_types::{BlobRef, Digest, ParamId, Publication, Version, index_of};
use futures::TryStreamExt;
use std::collections::BTreeSet;
use tokio::task::block_in_place;

/// Blobs that are downloaded at a time: they bound the memory beside the weights.
const DOWNLOADS: usize = 4;
/// What parameters hold before an anchor: an anchor that leaves something out shows.
const POISON: u16 = 0xa5a5;

/// Why a publication is not proven.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Damage {
    /// What the entry names cannot be read, or is not what it is named.
    #[error(transparent)]
    Io(#[from] LogIoError),
    /// A blob is no blob of this entry.
    #[error(transparent)]
    Blob(#[from] NotApplied),
    /// Its base is not what the entries before it lead to.
    #[error("its base v{0} is not proven")]
    NoBase(Version),
    /// It does not carry every element.
    #[error("it carries {found} elements of {expected}")]
    Incomplete {
        /// How many it carries.
        found: u64,
        /// How many there are.
        expected: u64,
    },
    /// The weights are others than it says.
    #[error("the weights do not have its digests: {0}")]
    WrongDigest(String),
}

impl Damage {
    /// The store's error, if what it holds may be sound all the same.
    pub(crate) const fn outage(&self) -> Option<&StoreError> {
        match self {
            Self::Io(LogIoError::Store(error)) if error.is_absence() || error.is_damage() => None,
            Self::Io(LogIoError::Store(error)) => Some(error),
            _ => None,
        }
    }
}

impl From<StoreError> for Damage {
    fn from(error: StoreError) -> Self {
        Self::Io(error.into())
    }
}

impl From<CodecError> for Damage {
    fn from(error: CodecError) -> Self {
        Self::Blob(error.into())
    }
}

/// What a publication took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proven {
    pub(crate) version: Version,
    pub(crate) blobs: u64,
    pub(crate) bytes: u64,
}

/// The weights of one version, or of none.
pub(crate) struct Replay {
    params: Vec<ParamMeta>,
    keys: DigestKeys,
    words: Vec<Vec<u16>>,
    digests: Vec<Digest>,
    /// Parameters whose digest is to be taken again.
    touched: BTreeSet<ParamId>,
    at: Option<Version>,
}

impl Replay {
    /// Memory for a stream's model: 2 bytes per parameter, 4 where it is FP32.
    pub(crate) fn new(stream: &StreamModel) -> Self {
        let params = stream.model.params().to_vec();
        let words = |param: &ParamMeta| vec![0; index_of(param.elements()) * param.dtype.words()];
        Self {
            keys: DigestKeys::new(stream.run),
            words: params.iter().map(words).collect(),
            digests: vec![Digest::ZERO; params.len()],
            touched: BTreeSet::new(),
            at: None,
            params,
        }
    }

    /// The parameters and their words.
    pub(crate) fn weights(&self) -> impl Iterator<Item = (&ParamMeta, &[u16])> {
        self.params.iter().zip(self.words.iter().map(Vec::as_slice))
    }

    /// There are no weights until the next anchor.
    pub(crate) const fn forget(&mut self) {
        self.at = None;
    }

    /// Applies an anchor or a delta and proves it. After an error there are no weights until the next anchor.
    pub(crate) async fn take(&mut self, io: &LogIo, stored: &Stored) -> Result<Proven, Damage> {
        let at = self.at.take();
        let Some(publication) = stored.entry.kind.publication() else { return Ok(Proven::default()) };
        let base = stored.entry.kind.base_version();
        match base {
            Some(base) if at != Some(base) => return Err(Damage::NoBase(base)),
            Some(_) => {}
            None => self.poison(),
        }
        let proven = self.apply(io, stored.entry.epoch, publication, base).await?;
        self.at = Some(publication.version);
        Ok(proven)
    }

    fn poison(&mut self) {
        self.words.iter_mut().for_each(|words| words.fill(POISON));
        self.touched = self.params.iter().map(|param| param.id).collect();
    }

    async fn apply(
        &mut self,
        io: &LogIo,
        epoch: u64,
        publication: &Publication,
        base: Option<Version>,
    ) -> Result<Proven, Damage> {
        let version = publication.version;
        let writers = io.writers(epoch, publication).await?;
        let stated = io.digests(epoch, publication, self.params.len()).await?;
        let blobs: Vec<BlobRef> = writers.into_iter().flat_map(|writer| writer.blobs).collect();
        let mut proven = Proven { version, ..Proven::default() };
        let mut carried = 0;
        let mut fetched = Box::pin(io.stream.get_blobs(epoch, blobs, DOWNLOADS));
        while let Some(blob) = fetched.try_next().await? {
            proven.blobs += 1;
            proven.bytes += blob.len() as u64;
            for section in block_in_place(|| sections(&self.params, blob, base, version))? {
                carried += section.header().n;
                block_in_place(|| self.write(&section))?;
            }
        }
        let expected = self.params.iter().map(ParamMeta::elements).sum();
        if base.is_none() && carried != expected {
            return Err(Damage::Incomplete { found: carried, expected });
        }
        block_in_place(|| self.prove(&stated))?;
        Ok(proven)
    }

    fn write(&mut self, section: &LogSection) -> Result<(), CodecError> {
        let id = ParamId(section.header().fragment);
        let index = index_of(id.0.into());
        let (param, words) = (&self.params[index], &mut self.words[index]);
        self.touched.insert(id);
        let (cols, per_element) = (param.cols(), param.dtype.words());
        let axes: Vec<(u64, u64)> = section.area().origin().zip(section.area().extent()).collect();
        let ((row, _), (col, width)) = match axes[..] {
            [rows, columns] => (rows, columns),
            [columns, ..] => ((0, 1), columns),
            [] => return Ok(()),
        };
        let place =
            |position: u64| index_of((row + position / width) * cols + col + position % width) * per_element;
        match section.view() {
            LogView::All(all) => {
                for (element, new) in (0..).zip(all.chunks_exact(per_element)) {
                    let first = place(element);
                    let words = &mut words[first..first + per_element];
                    words.iter_mut().zip(new).for_each(|(word, new)| *word = u16::from_le_bytes(*new));
                }
            }
            LogView::Sparse(blocks) => {
                let word_at = |position: u32| words[place(position.into())];
                let (positions, values) = blocks.decode_all(BaseWords::Exact, &word_at)?;
                for (position, value) in positions.into_iter().zip(values) {
                    words[place(position.into())] = value;
                }
            }
        }
        Ok(())
    }

    /// Hashes what was touched, and compares everything.
    fn prove(&mut self, stated: &[Digest]) -> Result<(), Damage> {
        for id in std::mem::take(&mut self.touched) {
            let index = index_of(id.0.into());
            self.digests[index] = self.keys.words(id, 0, &self.words[index]);
        }
        let pairs = self.params.iter().zip(self.digests.iter().zip(stated));
        let wrong: Vec<&str> =
            pairs.filter(|(_, (own, stated))| own != stated).map(|(param, _)| param.fqn.as_str()).collect();
        let Some(first) = wrong.first() else { return Ok(()) };
        Err(Damage::WrongDigest(match wrong.len() - 1 {
            0 => (*first).to_owned(),
            others => format!("{first} and {others} other parameters"),
        }))
    }
}
