//! Where a stream lies.

use crate::error::StoreError;
use object_store::path::Path;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use url::Url;

/// Where a stream lies: `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
/// `https://host/path` (reading only), or `memory:` (a new, empty one).
///
/// Credentials and options come from the environment, as the `object_store` crate reads it (`AWS_ACCESS_KEY_ID`,
/// `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`, ..): an address that carries any is refused, so that one can be logged.
///
/// ```
/// let url: driftless_store::StreamUrl = "s3://bucket/runs/7".parse()?;
/// assert_eq!(url.to_string(), "s3://bucket/runs/7");
/// # Ok::<(), driftless_store::StoreError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamUrl {
    url: Url,
    place: Place,
}

/// What an address leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// A folder of this machine.
    Folder(PathBuf),
    /// This process's memory.
    Memory,
    /// A bucket of S3 or of what speaks like it.
    S3 { prefix: Path },
    /// A bucket of Google's.
    Gcs { prefix: Path },
    /// A container of Azure's.
    Azure { prefix: Path },
    /// Files behind a web server.
    Http,
}

impl StreamUrl {
    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn as_str(&self) -> &str {
        self.url.as_str()
    }
}

impl fmt::Display for StreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())
    }
}

impl FromStr for StreamUrl {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        // The text itself is left out of errors: it may carry a password by mistake.
        let url = Url::parse(text).map_err(|error| {
            refused(format!("is no URL ({error}): expected file:///folder, s3://bucket/prefix or the like"))
        })?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("has a user name or a password: pass credentials in the environment"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(refused("has a ? or # part: pass options in the environment"));
        }
        let place = place(&url)?;
        Ok(Self { url, place })
    }
}

fn place(url: &Url) -> Result<Place, StoreError> {
    match url.scheme() {
        "file" => folder(url),
        "memory" => Ok(Place::Memory),
        "s3" => Ok(Place::S3 { prefix: prefix(url)? }),
        "gs" => Ok(Place::Gcs { prefix: prefix(url)? }),
        "az" => Ok(Place::Azure { prefix: prefix(url)? }),
        "http" | "https" => Ok(Place::Http),
        other => {
            Err(refused(format!("begins with {other}:, expected file, s3, gs, az, http, https or memory")))
        }
    }
}

fn folder(url: &Url) -> Result<Place, StoreError> {
    let on_this_machine = url.host_str().is_none_or(str::is_empty);
    let path = url.to_file_path().ok().filter(|_| on_this_machine);
    path.map(Place::Folder).ok_or_else(|| refused("names no folder: expected three slashes, file:///folder"))
}

fn prefix(url: &Url) -> Result<Path, StoreError> {
    if url.host_str().is_none_or(str::is_empty) {
        return Err(refused(format!("names no bucket: expected {}://bucket/prefix", url.scheme())));
    }
    let path = url.path().trim_end_matches('/');
    Path::from_url_path(path).map_err(|error| refused(format!("has a prefix that is no key: {error}")))
}

pub(crate) fn refused(reason: impl Into<String>) -> StoreError {
    StoreError::Address { reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_shown() {
        for (text, place) in [
            ("file:///a/b%20c", Place::Folder(PathBuf::from("/a/b c"))),
            ("memory:", Place::Memory),
            ("s3://bucket/a/b", Place::S3 { prefix: Path::from("a/b") }),
            ("s3://bucket/a/", Place::S3 { prefix: Path::from("a") }),
            ("s3://bucket", Place::S3 { prefix: Path::default() }),
            ("gs://bucket/a", Place::Gcs { prefix: Path::from("a") }),
            ("az://container/a", Place::Azure { prefix: Path::from("a") }),
            ("https://host/a", Place::Http),
        ] {
            let url: StreamUrl = text.parse().expect(text);
            assert_eq!((url.to_string().as_str(), url.place()), (text, &place));
        }
    }

    #[test]
    fn an_address_carries_no_credentials() {
        for text in ["s3://key:secret@bucket/a", "https://host/a?sig=secret", "az://secret@container/a"] {
            let error = text.parse::<StreamUrl>().expect_err(text);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn other_addresses_are_refused_with_a_way_out() {
        for (text, hint) in [
            ("a/b", "file:///folder"),
            ("file://host/a", "three slashes"),
            ("ftp://host/a", "expected file, s3"),
            ("s3:///a", "expected s3://bucket/prefix"),
            ("s3://bucket/a//b", "no key"),
        ] {
            let error = text.parse::<StreamUrl>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
