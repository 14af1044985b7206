//! From an address to a stream.

use crate::address::{Place, StreamUrl, refused};
use crate::classify::classify_io;
use crate::error::StoreError;
use crate::local::LocalFolder;
use crate::options::StoreOptions;
use crate::stream::{Discovery, Stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use std::fs;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any deadline of ours, which rules instead of the client's: the client's counts the payload in.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Opens a stream where one is expected: a folder that does not exist is refused, so that a slip in an address is
/// not taken for an empty stream. Whether a bucket exists shows at the first request.
///
/// # Errors
/// An address that cannot be used, options in the environment that cannot be read, a folder that is missing.
pub fn open(url: &StreamUrl, options: &StoreOptions) -> Result<Stream, StoreError> {
    match url.place() {
        Place::Folder(folder) => open_folder(folder, options),
        Place::Memory => Ok(Stream::new(Arc::new(InMemory::new()), Path::default(), options.clone())),
        Place::S3 { prefix } => remote(s3(url)?, prefix, options),
        Place::Gcs { prefix } => remote(gcs(url)?, prefix, options),
        Place::Azure { prefix } => remote(azure(url)?, prefix, options),
        Place::Http => {
            Ok(Stream::build(http(url)?, Path::default(), options.clone(), None, Discovery::ByProbing))
        }
    }
}

/// Opens a place for a new stream: like [`open`], but makes the folder of a `file:` address, and sees to it that it
/// is still there after a crash of the machine.
///
/// # Errors
/// As [`open`]; a folder that cannot be made.
pub fn create(url: &StreamUrl, options: &StoreOptions) -> Result<Stream, StoreError> {
    if let Place::Folder(folder) = url.place() {
        make_folder(folder).map_err(|error| folder_error(folder, error, options))?;
    }
    open(url, options)
}

/// Our TLS provider, unless the program has chosen one before.
fn install_tls_provider() {
    // An error only says that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn open_folder(folder: &FilePath, options: &StoreOptions) -> Result<Stream, StoreError> {
    // Checked first, because object_store's error would hide which kind of failure it was.
    let root = folder.canonicalize().map_err(|error| folder_error(folder, error, options))?;
    let store = LocalFileSystem::new_with_prefix(&root).map_err(|error| build_error(&error))?;
    // LG-3: with fsync on, object_store syncs the file before its name appears, and the name's folder after.
    let store: Arc<dyn ObjectStore> = Arc::new(store.with_fsync(true));
    let local = Some(LocalFolder::new(root));
    Ok(Stream::build(store, Path::default(), options.clone(), local, Discovery::ByListing))
}

fn folder_error(folder: &FilePath, error: std::io::Error, options: &StoreOptions) -> StoreError {
    if error.kind() == std::io::ErrorKind::NotFound {
        return refused(format!("leads to {}, which does not exist", folder.display()));
    }
    classify_io(&Path::from(folder.display().to_string()), error, options.deadline)
}

/// Makes a folder and syncs every folder on its way that may just have got an entry.
fn make_folder(folder: &FilePath) -> std::io::Result<()> {
    let existing = folder.ancestors().find(|ancestor| ancestor.is_dir());
    fs::create_dir_all(folder)?;
    for ancestor in folder.ancestors() {
        fs::File::open(ancestor)?.sync_all()?;
        if Some(ancestor) == existing {
            break;
        }
    }
    Ok(())
}

fn remote(store: Arc<dyn ObjectStore>, prefix: &Path, options: &StoreOptions) -> Result<Stream, StoreError> {
    Ok(Stream::new(store, prefix.clone(), options.clone()))
}

/// The client's own retries are off: for entries they would hide whose bytes took a place (LG-12), and for the rest
/// they would multiply with ours.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn client_timeout() -> String {
    format!("{}s", CLIENT_TIMEOUT.as_secs())
}

fn s3(url: &StreamUrl) -> Result<Arc<dyn ObjectStore>, StoreError> {
    install_tls_provider();
    let builder = AmazonS3Builder::from_env()
        .with_url(url.as_str())
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), client_timeout())
        .with_retry(no_retries());
    let store = builder.build().map_err(|error| build_error(&error))?;
    Ok(Arc::new(store))
}

fn gcs(url: &StreamUrl) -> Result<Arc<dyn ObjectStore>, StoreError> {
    install_tls_provider();
    let builder = GoogleCloudStorageBuilder::from_env()
        .with_url(url.as_str())
        .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), client_timeout())
        .with_retry(no_retries());
    let store = builder.build().map_err(|error| build_error(&error))?;
    Ok(Arc::new(store))
}

fn azure(url: &StreamUrl) -> Result<Arc<dyn ObjectStore>, StoreError> {
    install_tls_provider();
    let builder = MicrosoftAzureBuilder::from_env()
        .with_url(url.as_str())
        .with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), client_timeout())
        .with_retry(no_retries());
    let store = builder.build().map_err(|error| build_error(&error))?;
    Ok(Arc::new(store))
}

fn http(url: &StreamUrl) -> Result<Arc<dyn ObjectStore>, StoreError> {
    install_tls_provider();
    // The scheme was spelled out by whoever wrote the address, and all that is read is checked by digests.
    let client = ClientOptions::new().with_allow_http(true).with_timeout(CLIENT_TIMEOUT);
    let builder =
        HttpBuilder::new().with_url(url.as_str()).with_client_options(client).with_retry(no_retries());
    let store = builder.build().map_err(|error| build_error(&error))?;
    Ok(Arc::new(store))
}

/// Errors of builders name options and their faults, never their secret values.
fn build_error(error: &object_store::Error) -> StoreError {
    refused(format!("or an option in the environment cannot be used: {error}"))
}
