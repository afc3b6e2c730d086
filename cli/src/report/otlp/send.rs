//! One request to a collector and its answer, within a time.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use prost::Message;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, Error};

use super::endpoint::Endpoint;
use crate::demangle::clean;

/// From the first packet to the last byte of the answer.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// What is read of an answer.
const ANSWER_MAX: u64 = 64 << 10;
/// What is shown of it, characters.
const SHOWN_MAX: usize = 300;
const PROTOBUF: &str = "application/x-protobuf";

/// What a collector answers with when it refuses: google.rpc.Status.
#[derive(Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

/// What became of a request that was taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    /// Profiles that were rejected.
    pub rejected: u64,
    /// What the collector says.
    pub said: String,
    /// Size of the request, compressed.
    pub bytes: u64,
}

impl Sent {
    /// What the collector says, or these words.
    pub fn said_or<'a>(&'a self, words: &'a str) -> &'a str {
        match self.said.as_str() {
            "" => words,
            said => said,
        }
    }
}

/// Sends a request; an error has the address and the reason.
pub fn send(
    endpoint: &Endpoint,
    request: &ExportProfilesServiceRequest,
    timeout: Duration,
) -> Result<Sent> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::default());
    gz.write_all(&request.encode_to_vec())?;
    let body = gz.finish().context("failed to compress the profiles")?;
    let mut sent = post(endpoint, &body, timeout)?;
    sent.bytes = body.len() as u64;
    Ok(sent)
}

fn post(endpoint: &Endpoint, body: &[u8], timeout: Duration) -> Result<Sent> {
    let mut config = Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .user_agent(concat!("parcagpu/", env!("CARGO_PKG_VERSION")));
    if endpoint.is_here() {
        config = config.proxy(None);
    }
    let response = Agent::from(config.build())
        .post(endpoint.url())
        .header("Content-Type", PROTOBUF)
        .header("Content-Encoding", "gzip")
        .send(body)
        .map_err(|e| anyhow!("cannot send to {endpoint}: {}", reason(e, timeout)))?;
    answer(endpoint, response, timeout)
}

fn reason(error: Error, timeout: Duration) -> String {
    match error {
        Error::Timeout(_) => format!("no answer within {} s", timeout.as_secs_f64()),
        Error::HostNotFound => "there is no such host".to_owned(),
        Error::Io(e) => e.to_string(),
        other => other.to_string(),
    }
}

fn answer(endpoint: &Endpoint, mut response: Response<Body>, timeout: Duration) -> Result<Sent> {
    let status = response.status();
    let kind = response.headers().get("Content-Type");
    let kind = kind.and_then(|k| k.to_str().ok()).unwrap_or_default();
    let protobuf = kind.starts_with(PROTOBUF);
    let body = response.body_mut().with_config().limit(ANSWER_MAX);
    let body = body
        .read_to_vec()
        .map_err(|e| anyhow!("{endpoint} did not end its answer: {}", reason(e, timeout)))?;
    if !status.is_success() {
        let said = match Status::decode(&body[..]) {
            Ok(status) if protobuf => shown(&status.message),
            _ => shown(&String::from_utf8_lossy(&body)),
        };
        let hint = match status {
            StatusCode::NOT_FOUND => {
                " (the OpenTelemetry Collector takes profiles with --feature-gates=service.profilesSupport and a pipeline for them)"
            }
            _ => "",
        };
        let said = match said.as_str() {
            "" => said,
            said => format!(": {said}"),
        };
        bail!("{endpoint} answered {status}{said}{hint}");
    }
    let told = ExportProfilesServiceResponse::decode(&body[..]);
    // No answer of a collector, so that nobody knows who took the profiles.
    let Some(told) = told.ok().filter(|_| protobuf || body.is_empty()) else {
        bail!(
            "{endpoint} answered {status} and is no collector: {}",
            shown(&String::from_utf8_lossy(&body))
        );
    };
    let partial = told.partial_success.unwrap_or_default();
    Ok(Sent {
        rejected: u64::try_from(partial.rejected_profiles).unwrap_or(0),
        said: shown(&partial.error_message),
        bytes: 0,
    })
}

/// Somebody else's words, as far as they are shown.
fn shown(text: &str) -> String {
    let text = clean(text.trim());
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Instant;

    fn listening() -> (TcpListener, Endpoint) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        (listener, url.parse().unwrap())
    }

    #[test]
    fn one_that_hangs_costs_no_more_than_the_time_for_it() {
        let timeout = Duration::from_millis(400);
        let unfinished = "HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n";
        // Reads nothing, answers nothing, answers a byte now and then.
        for (size, beginning) in [(64 << 20, ""), (10, ""), (10, unfinished)] {
            let (listener, endpoint) = listening();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                // It may have given up by now.
                let _ = stream.write_all(beginning.as_bytes());
                let pause = Duration::from_millis(30);
                while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    if !beginning.is_empty() {
                        let _ = stream.write_all(b"x");
                    }
                }
            });
            let began = Instant::now();
            let said = post(&endpoint, &vec![0; size], timeout).unwrap_err();
            let (took, said) = (began.elapsed(), said.to_string());
            drop(end);
            server.join().unwrap();
            // None of them would ever come to an end.
            assert!(took >= timeout && took < TIMEOUT, "{took:?}: {said}");
            assert!(said.contains(endpoint.url()), "{said}");
            assert!(said.contains("no answer within 0.4 s"), "{said}");
        }
    }

    #[test]
    fn an_answer_without_end_is_not_read_to_it() {
        let (listener, endpoint) = listening();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let _ = stream.write_all(b"HTTP/1.1 500 Broken\r\n\r\n");
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
        });
        let said = post(&endpoint, b"", Duration::from_secs(20)).unwrap_err();
        let said = said.to_string();
        assert!(said.contains("did not end its answer"), "{said}");
        server.join().unwrap();
    }

    #[test]
    fn words_of_others_are_cut_and_cleaned() {
        assert_eq!(shown(" a\x1b[2Jb\n"), "a\u{fffd}[2Jb");
        assert_eq!(shown(&"ä".repeat(400)).chars().count(), SHOWN_MAX + 1);
    }
}
