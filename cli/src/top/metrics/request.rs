//! The little of HTTP that a scrape needs: one GET, one answer, end of connection.

use std::sync::Arc;

/// Longest head of a request, bytes; scrapers send a few hundred.
pub const HEAD_MAX: usize = 8 << 10;
/// Most headers in it.
const HEADERS_MAX: usize = 64;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// GET or HEAD.
    pub head_only: bool,
    /// Without what follows `?`.
    pub path: String,
    /// The `Accept` headers.
    pub accept: String,
}

/// What bytes are the beginning of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// More has to come.
    Partly,
    /// A request that can be answered.
    Request(Request),
    /// Anything else, with the answer to it.
    Refused(Answer),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number and words.
    pub status: &'static str,
    /// Of the body.
    pub content_type: &'static str,
    /// Told to the client.
    pub body: Arc<str>,
}

impl Answer {
    /// A line of text.
    pub fn line(status: &'static str, text: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{text}\n").into(),
        }
    }

    /// As it goes over the wire; `head_only`: without the body.
    pub fn bytes(&self, head_only: bool) -> Vec<u8> {
        let allow = match self.status.starts_with("405") {
            true => "Allow: GET, HEAD\r\n",
            false => "",
        };
        let mut bytes = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        )
        .into_bytes();
        if !head_only {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        bytes
    }
}

/// Reads the head of a request.
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Parsed::Partly,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            let status = "431 Request Header Fields Too Large";
            return Parsed::Refused(Answer::line(status, "the head of the request is too long"));
        }
        Err(e) => {
            let said = Answer::line("400 Bad Request", &format!("not a request: {e}"));
            return Parsed::Refused(said);
        }
        Ok(httparse::Status::Complete(_)) => {}
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => {
            let said = Answer::line("405 Method Not Allowed", "only GET and HEAD");
            return Parsed::Refused(said);
        }
    };
    let target = request.path.unwrap_or_default();
    let accept = request
        .headers
        .iter()
        .filter(|h| h.name.eq_ignore_ascii_case("accept"))
        .map(|h| String::from_utf8_lossy(h.value).into_owned());
    Parsed::Request(Request {
        head_only,
        path: target.split('?').next().unwrap_or_default().to_owned(),
        accept: accept.collect::<Vec<_>>().join(","),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(bytes: &[u8]) -> String {
        match parse(bytes) {
            Parsed::Refused(answer) => answer.status[..3].to_owned(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_scrape() {
        let text =
            "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naccept: text/plain\r\nAccept: */*\r\n\r\n";
        let wanted = Request {
            head_only: false,
            path: "/metrics".to_owned(),
            accept: "text/plain,*/*".to_owned(),
        };
        assert_eq!(parse(text.as_bytes()), Parsed::Request(wanted));
        for end in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..end]), Parsed::Partly, "{end}");
        }
    }

    #[test]
    fn rubbish_is_refused() {
        assert_eq!(status(b"\x16\x03\x01\x02\x00 TLS"), "400");
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), "405");
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_MAX));
        assert_eq!(status(long.as_bytes()), "431");
        let many = "a: b\r\n".repeat(HEADERS_MAX + 1);
        assert_eq!(
            status(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()),
            "431"
        );
    }

    #[test]
    fn answers() {
        let answer = Answer::line("200 OK", "äö");
        let text = String::from_utf8(answer.bytes(false)).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\näö\n"));
        assert!(text.contains("Content-Length: 5\r\n"));
        let head = String::from_utf8(answer.bytes(true)).unwrap();
        assert!(head.contains("Content-Length: 5\r\n") && head.ends_with("\r\n\r\n"));
        let refused = Answer::line("405 Method Not Allowed", "");
        let refused = String::from_utf8(refused.bytes(false)).unwrap();
        assert!(refused.contains("Allow: GET, HEAD\r\n"));
    }
}
