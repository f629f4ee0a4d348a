//! What a registry may do wrong, one by one.

use super::fake::{Answer, Fake};
use super::*;

#[test]
fn a_registry_that_cuts_every_connection_is_read_to_the_end() {
    let bytes = noise(5 << 20);
    let content = bytes.clone();
    let fake = Fake::start(move |request| {
        if request.target == "/v2/" {
            return Answer::json("{}");
        }
        let start: usize = request
            .header("range")
            .map_or(0, |range| range[6..range.len() - 1].parse().unwrap());
        let rest = &content[start..];
        let total = content.len();
        let range = format!("bytes {start}-{}/{total}", total - 1);
        let status = if start == 0 {
            "200 OK"
        } else {
            "206 Partial Content"
        };
        Answer::new(status, &[("Content-Range", &range)], rest).cut(1 << 20)
    });
    let repository = on(&client(None), &fake.host, "app");
    assert!(read(&repository, &blob(&bytes), 0).unwrap() == bytes);
    assert_eq!(fake.asked("GET", "/blobs/").len(), 5);
}
