//! What the first entry of a stream names: the model, and the table of its parameters.

use super::io::{LogIo, LogIoError, fault};
use driftless_codec::entry::{EntryError, Parameter, decode_parameters, encode_parameters};
use driftless_layout::{LayoutError, Model, ModelConfig, ParamMeta, ServedDtypes, TrainerLayout};
use driftless_proto::log::{Fault, PublishEvent, Reading};
use driftless_store::StoreError;
use driftless_types::{EntryKind, Epoch, Genesis, RunId, Seq};
use thiserror::Error;
use tracing::warn;

/// What a publisher founds a stream with.
#[derive(Clone, Debug)]
pub(crate) struct Founding {
    pub(crate) run: RunId,
    pub(crate) model_config: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) lease_ttl_s: u64,
}

/// The table of a plan's parameters.
pub(crate) fn table(params: &[ParamMeta]) -> Vec<Parameter> {
    let row = |param: &ParamMeta| Parameter {
        name: param.fqn.clone(),
        dtype: param.dtype,
        shape: param.shape.clone(),
    };
    params.iter().map(row).collect()
}

impl Founding {
    /// Puts the blobs that genesis names.
    pub(crate) async fn put(&self, io: &LogIo, epoch: Epoch) -> PublishEvent {
        let put = async {
            let parameters = io.put_blob(epoch, encode_parameters(&self.parameters)?.into()).await?;
            let model_config = io.put_blob(epoch, self.model_config.clone().into()).await?;
            let (run, lease_ttl_s) = (self.run, self.lease_ttl_s);
            Ok::<_, LogIoError>(Genesis { run, digest_key: run.0, lease_ttl_s, parameters, model_config })
        };
        match put.await {
            Ok(genesis) => PublishEvent::GenesisPut(genesis),
            Err(LogIoError::Store(error)) => PublishEvent::Failed(fault(&error)),
            Err(error) => {
                warn!(%error, "the table of parameters cannot be written");
                PublishEvent::Failed(Fault::Denied)
            }
        }
    }
}

/// What a reader learns from the first entry.
#[derive(Clone, Debug)]
pub struct StreamModel {
    /// The run whose weights are published.
    pub run: RunId,
    /// The text of the model's `config.json`.
    pub config: String,
    /// The model, with the dtypes that it is served in.
    pub model: Model,
    /// How long a lease pins what its reader needs after it was last renewed, in seconds.
    pub lease_ttl_s: u64,
}

/// Why a stream cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// There is no stream.
    #[error(
        "no stream begins here: its first entry is absent (publish to this address first, or correct it)"
    )]
    Absent,
    /// The first entry does not verify.
    #[error(
        "the first entry does not verify: it is signed by nobody, or by a key that is not trusted (see `--trust`), or damaged"
    )]
    Invalid,
    /// The store does not answer.
    #[error("the first entry cannot be read: {0}")]
    Unreadable(Fault),
    /// The first entry is another kind.
    #[error("the first entry is of kind {found}, expected genesis")]
    NotGenesis {
        /// Its kind.
        found: &'static str,
    },
    /// What it names cannot be read.
    #[error(transparent)]
    Io(#[from] LogIoError),
    /// The config is not one of a model that is supported.
    #[error("the stream's model: {0}")]
    Layout(#[from] LayoutError),
    /// The table is not that of the config's model.
    #[error("the stream's table of parameters is not that of its config: {0}")]
    Table(String),
}

impl From<StoreError> for StreamError {
    fn from(error: StoreError) -> Self {
        Self::Io(error.into())
    }
}

impl From<EntryError> for StreamError {
    fn from(error: EntryError) -> Self {
        Self::Io(error.into())
    }
}

/// Reads what a stream is of.
///
/// # Errors
/// See [`StreamError`].
pub async fn stream_model(io: &LogIo) -> Result<StreamModel, StreamError> {
    let stored = match io.read(Seq::GENESIS).await {
        Reading::Found(stored) => stored,
        Reading::Absent => return Err(StreamError::Absent),
        Reading::Invalid => return Err(StreamError::Invalid),
        Reading::Failed(fault) => return Err(StreamError::Unreadable(fault)),
    };
    let EntryKind::Genesis(genesis) = stored.entry.kind else {
        return Err(StreamError::NotGenesis { found: stored.entry.kind.name() });
    };
    let epoch = stored.entry.epoch;
    let table = decode_parameters(&io.stream.get_blob(epoch, &genesis.parameters).await?)?;
    let config = io.stream.get_blob(epoch, &genesis.model_config).await?;
    let config = String::from_utf8(config.to_vec());
    let config = config.map_err(|_| StreamError::Table("the config is no text".into()))?;
    let dtypes = table.iter().map(|row| (row.name.clone(), row.dtype)).collect();
    let model = Model::new(
        ModelConfig::from_json(&config)?,
        &ServedDtypes::new(dtypes, &"hf".parse::<TrainerLayout>()?, &[])?,
    )?;
    check(&table, model.params())?;
    let (run, lease_ttl_s) = (genesis.run, genesis.lease_ttl_s);
    Ok(StreamModel { run, config, model, lease_ttl_s })
}

fn check(table: &[Parameter], params: &[ParamMeta]) -> Result<(), StreamError> {
    let (found, expected) = (table.len(), params.len());
    if found != expected {
        return Err(StreamError::Table(format!("it has {found} rows, expected {expected}")));
    }
    for (row, expected) in table.iter().zip(self::table(params)) {
        if *row != expected {
            return Err(StreamError::Table(format!("found {row:?}, expected {expected:?}")));
        }
    }
    Ok(())
}
