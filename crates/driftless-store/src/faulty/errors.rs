//! The errors of faults, as the real clients make them: those of HTTP come from object_store's own S3 client, which
//! is given the status instead of a server.

use super::Fault;
use async_trait::async_trait;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::path::Path;
use object_store::{ClientOptions, Error, ObjectStoreExt, Result, RetryConfig};
use reqwest::StatusCode;
use std::io::{self, ErrorKind};

/// S3 clients that are always refused.
pub(super) struct Refusals {
    conflict: AmazonS3,
    precondition: AmazonS3,
    too_many_requests: AmazonS3,
    unavailable: AmazonS3,
    timed_out: AmazonS3,
    missing: AmazonS3,
    forbidden: AmazonS3,
}

impl Refusals {
    pub(super) fn new() -> Self {
        Self {
            conflict: client(Answer::Status(StatusCode::CONFLICT)),
            precondition: client(Answer::Status(StatusCode::PRECONDITION_FAILED)),
            too_many_requests: client(Answer::Status(StatusCode::TOO_MANY_REQUESTS)),
            unavailable: client(Answer::Status(StatusCode::SERVICE_UNAVAILABLE)),
            timed_out: client(Answer::TimedOut),
            missing: client(Answer::Status(StatusCode::NOT_FOUND)),
            forbidden: client(Answer::Status(StatusCode::FORBIDDEN)),
        }
    }

    /// The error of a fault that keeps a request from being carried out; `Ok` for those that do not.
    pub(super) async fn refuse(&self, fault: Fault, key: &Path) -> Result<()> {
        let client = match fault {
            Fault::Conflict => &self.conflict,
            Fault::Precondition => &self.precondition,
            Fault::TooManyRequests => &self.too_many_requests,
            Fault::Unavailable => &self.unavailable,
            Fault::TimedOut => &self.timed_out,
            Fault::NotVisible => &self.missing,
            Fault::PermissionDenied => &self.forbidden,
            Fault::Hang => return std::future::pending().await,
            Fault::DiskFull => return Err(of_disk(ErrorKind::StorageFull)),
            Fault::ReadOnly => return Err(of_disk(ErrorKind::ReadOnlyFilesystem)),
            Fault::ReplyLost | Fault::Truncated | Fault::FlippedBit | Fault::StaleListing => return Ok(()),
        };
        client.put(key, "refused".into()).await.map(|_| ())
    }
}

/// A connection that broke before the answer came.
pub(super) fn broken() -> Error {
    let source = HttpError::new(HttpErrorKind::Interrupted, io::Error::from(ErrorKind::ConnectionReset));
    Error::Generic { store: "S3", source: Box::new(source) }
}

/// As the local store reports an error of the system.
fn of_disk(kind: ErrorKind) -> Error {
    Error::Generic { store: "LocalFileSystem", source: Box::new(io::Error::from(kind)) }
}

fn client(answer: Answer) -> AmazonS3 {
    AmazonS3Builder::new()
        .with_bucket_name("refused")
        .with_skip_signature(true)
        .with_http_connector(answer)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .build()
        .expect("a bucket's name is all that a client needs")
}

/// What every request is answered with.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Status(StatusCode),
    TimedOut,
}

impl HttpConnector for Answer {
    fn connect(&self, _: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(*self))
    }
}

#[async_trait]
impl HttpService for Answer {
    async fn call(&self, _: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        match self {
            Self::Status(status) => {
                let mut response = HttpResponse::new(HttpResponseBody::from(String::new()));
                *response.status_mut() = *status;
                Ok(response)
            }
            Self::TimedOut => {
                Err(HttpError::new(HttpErrorKind::Timeout, io::Error::from(ErrorKind::TimedOut)))
            }
        }
    }
}
