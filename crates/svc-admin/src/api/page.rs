//! The page: built files, embedded in the program. The sources are in `ui/`; `npm run build` there
//! builds them.

use ron_http::Response;

#[derive(Debug)]
pub struct File {
    pub path: &'static str,
    pub content_type: &'static str,
    pub about: &'static str,
    pub bytes: &'static [u8],
}

/// All files of the page. Names are fixed, so that a rebuild is a small difference; caches check
/// the entity tag.
pub static FILES: [File; 4] = [
    File {
        path: "/",
        content_type: "text/html; charset=utf-8",
        about: "The console",
        bytes: include_bytes!("../../ui/dist/index.html"),
    },
    File {
        path: "/app.js",
        content_type: "text/javascript; charset=utf-8",
        about: "Its script",
        bytes: include_bytes!("../../ui/dist/app.js"),
    },
    File {
        path: "/app.css",
        content_type: "text/css; charset=utf-8",
        about: "Its style",
        bytes: include_bytes!("../../ui/dist/app.css"),
    },
    File {
        path: "/favicon.svg",
        content_type: "image/svg+xml",
        about: "Its icon",
        bytes: include_bytes!("../../ui/dist/favicon.svg"),
    },
];

/// The response with a file.
pub fn response(file: &'static File, tag: &str) -> Response {
    Response::bytes(200, file.content_type, file.bytes)
        .etag(tag)
        .cache("no-cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str) -> &'static str {
        let file = FILES
            .iter()
            .find(|file| file.path == path)
            .expect("embedded");
        std::str::from_utf8(file.bytes).expect("text")
    }

    #[test]
    fn the_page_needs_nothing_but_its_own_files() {
        let html = text("/");
        for part in html
            .split(['"', '\''])
            .filter(|part| part.starts_with("./"))
        {
            let path = part.trim_start_matches('.');
            assert!(
                FILES.iter().any(|file| file.path == path),
                "{part} is not embedded"
            );
        }
        assert!(
            html.contains("./app.js")
                && html.contains("./app.css")
                && html.contains("./favicon.svg")
        );
        assert!(
            !html.contains("<style") && !html.contains("<script>") && !html.contains("style="),
            "inline code breaks the policy"
        );
        for path in ["/", "/app.css"] {
            assert!(
                !text(path).contains("http://") && !text(path).contains("https://"),
                "{path} names a foreign origin"
            );
        }
        // Namespaces and links to errors are names; the page fetches nothing from them.
        let urls = text("/app.js")
            .split("http")
            .skip(1)
            .filter(|rest| rest.starts_with("://") || rest.starts_with("s://"));
        for url in urls {
            assert!(
                url.starts_with("://www.w3.org/"),
                "app.js names http{}",
                &url[..url.len().min(60)]
            );
        }
    }

    /// Size of a file as a browser fetches it, compressed.
    fn gzip_len(path: &str) -> usize {
        use std::io::Write as _;
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        out.write_all(text(path).as_bytes()).expect("into memory");
        out.finish().expect("into memory").len()
    }

    #[test]
    fn the_page_keeps_its_budgets() {
        let check = |path: &str, most: usize| {
            let len = gzip_len(path);
            assert!(len <= most, "{path}: {len} bytes of {most}");
        };
        check("/app.js", 60_000);
        check("/app.css", 8_000);
        check("/", 2_000);
        assert!(FILES.len() <= 8, "{} files", FILES.len());
    }
}
