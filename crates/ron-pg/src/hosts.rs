//! A database with several hosts, as one text for each. libpq tries the hosts one after the other, and without calls that
//! wait it never gives one up that accepts a connection and says nothing, as a stopped primary does.

use crate::sys::parse_options;

/// What stands in `conninfo` for each host; `None` when it names at most one, or is not understood: libpq says why.
pub(crate) fn each_host(conninfo: &str) -> Option<Vec<String>> {
    split(&parse_options(conninfo)?)
}

fn split(options: &[(String, String)]) -> Option<Vec<String>> {
    let list = |name: &str| {
        let found = options.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.split(',').collect::<Vec<_>>())
    };
    let lists = [list("host"), list("hostaddr"), list("port")];
    let hosts = lists[..2].iter().flatten().map(Vec::len).max()?;
    let fits = |list: &Vec<&str>| list.len() == hosts;
    let ports_fit = lists[2]
        .as_ref()
        .is_none_or(|ports| fits(ports) || ports.len() == 1);
    if hosts < 2 || !lists[..2].iter().flatten().all(fits) || !ports_fit {
        return None;
    }
    let of_host = |at: usize| {
        let mut pairs = Vec::new();
        // Of several hosts the caller wants the one that takes writes, unless the text says another thing.
        if list("target_session_attrs").is_none() {
            pairs.push("target_session_attrs='read-write'".to_owned());
        }
        for (name, value) in options {
            let value = match name.as_str() {
                "host" | "hostaddr" | "port" => {
                    let mut values = value.split(',');
                    let first = values.clone().next();
                    values.nth(at).or(first).unwrap_or_default()
                }
                _ => value,
            };
            let quoted = value.replace('\\', "\\\\").replace('\'', "\\'");
            pairs.push(format!("{name}='{quoted}'"));
        }
        pairs.join(" ")
    };
    Some((0..hosts).map(of_host).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_gets_what_is_its_own_and_all_that_is_common() {
        let url = "postgresql://ron@10.0.0.1,10.0.0.2:5433/ledger?passfile=/a%20b";
        let each = each_host(url).expect("two hosts");
        assert_eq!(each.len(), 2);
        for (text, [host, port]) in each.iter().zip([["10.0.0.1", ""], ["10.0.0.2", "5433"]]) {
            for part in [
                "target_session_attrs='read-write'",
                "user='ron'",
                "dbname='ledger'",
                "passfile='/a b'",
                &format!("host='{host}'"),
                &format!("port='{port}'"),
            ] {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
        let pairs =
            r"hostaddr=1.1.1.1,2.2.2.2 host=a,b port=7 user='it\'s' target_session_attrs=any";
        let each = each_host(pairs).expect("two hosts");
        for part in [
            "hostaddr='2.2.2.2'",
            "host='b'",
            "port='7'",
            r"user='it\'s'",
            "target_session_attrs='any'",
        ] {
            assert!(each[1].contains(part), "{part} in {}", each[1]);
        }
    }

    #[test]
    fn one_host_and_what_libpq_refuses_are_left_to_it() {
        for text in [
            "postgresql://ron@10.0.0.1/ledger",
            "dbname=ledger",
            "",
            "host=a,b port=1,2,3",
            "host=a,b hostaddr=1.1.1.1",
            "no_such_option=1 host=a,b",
            "host=a,b\0",
        ] {
            assert_eq!(each_host(text), None, "{text}");
        }
    }
}
