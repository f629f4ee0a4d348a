//! Small charts and what `helm template` (3.17) renders from them.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::*;

const CHART: &str = "apiVersion: v2\nname: demo\nversion: 1.2.3\nappVersion: 4.5\n";

fn files(all: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    let mut files: BTreeMap<String, Vec<u8>> =
        BTreeMap::from([("Chart.yaml".to_owned(), CHART.as_bytes().to_vec())]);
    for (path, text) in all {
        files.insert((*path).to_owned(), text.as_bytes().to_vec());
    }
    files
}

fn options() -> RenderOptions {
    RenderOptions {
        release: "rel".to_owned(),
        namespace: "default".to_owned(),
        kubernetes: "v1.32.0".to_owned(),
        api_versions: vec!["monitoring.coreos.com/v1".to_owned()],
    }
}

fn render(all: &[(&str, &str)], values: &[Value]) -> Result<Vec<(String, String)>> {
    // Most templates here render to no manifest.
    let chart = Chart::load(files(all))?;
    let rendered = render::render(&chart, values, &options(), |_, _| Ok(()))?;
    let pairs = rendered.into_iter().map(|r| (r.path, r.text));
    Ok(pairs.collect())
}

/// Returns the text of `templates/x.yaml` in a chart with these values.
fn one(values: &str, template: &str) -> String {
    let all = [("values.yaml", values), ("templates/x.yaml", template)];
    match render(&all, &[]) {
        Ok(all) => all.into_iter().map(|(_, text)| text).collect(),
        Err(error) => format!("{error}"),
    }
}

#[test]
fn values_print_as_in_helm() {
    let values = "int: 5\nbig: 1000000\nfloat: 1.10\noctal: 0644\nlist: [1, a, {b: 1}]\nnone:\n\
                  text: \"y\"\n";
    for (template, expected) in [
        (
            "{{ .Values.int }} {{ .Values.big }} {{ .Values.float }} {{ .Values.octal }}",
            "5 1e+06 1.1 420",
        ),
        (
            "{{ .Values.big | int }} {{ .Values.big | toJson }} {{ kindOf .Values.int }}",
            "1000000 1000000 float64",
        ),
        ("{{ .Values.list }} [{{ .Values.none }}] [{{ .Values.gap }}]", "[1 a map[b:1]] [] []"),
        ("{{ toYaml .Values.list }} {{ toYaml .Values.text }}", "- 1\n- a\n- b: 1 \"y\""),
        (
            "{{ .Chart.Name }} {{ .Chart.AppVersion }} {{ .Release.Service }} {{ .Template.Name }}",
            "demo 4.5 Helm demo/templates/x.yaml",
        ),
        (
            "{{ .Capabilities.KubeVersion }} {{ .Capabilities.KubeVersion.Minor }} {{ .Capabilities.KubeVersion.GitVersion }}",
            "v1.32.0 32 v1.32.0",
        ),
        (
            "{{ .Capabilities.APIVersions.Has \"monitoring.coreos.com/v1\" }} {{ .Capabilities.APIVersions.Has \"x/v1\" }}",
            "true false",
        ),
        (
            "{{ printf \"%05d|%-4s|%q|%.2f|%x|%v\" 42 \"a\" \"b\" 1.234 255 .Values.big }}",
            "00042|a   |\"b\"|1.23|ff|1e+06",
        ),
        (
            "{{ range $i, $e := until 3 }}{{ if eq $i 1 }}{{ continue }}{{ end }}{{ $e }}{{ end }}",
            "02",
        ),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
        ("a\n  {{- /* a comment */}}\n  b", "a\n  b"),
        ("{{ \"abc\" | trunc 2 | }}-d", "ab-d"),
        ("{{ (.Values.gap).deeper }}|{{ with .Values.gap }}x{{ else }}y{{ end }}", "|y"),
    ] {
        assert_eq!(one(values, template), expected, "{template}");
    }
}

#[test]
fn maps_change_in_place_as_in_go() {
    for (template, expected) in [
        ("{{ $d := dict \"a\" 1 }}{{ $_ := set $d \"b\" 2 }}{{ $d }}", "map[a:1 b:2]"),
        ("{{ $_ := set .Values \"x\" 1 }}{{ .Values.x }}", "1"),
        (
            "{{ $d := dict \"a\" (dict \"b\" 1) }}{{ $_ := unset $d.a \"b\" }}{{ $d }}",
            "map[a:map[]]",
        ),
        (
            "{{ $d := dict \"a\" 1 }}{{ $_ := merge $d (dict \"a\" 2 \"b\" 3) }}{{ $d }}",
            "map[a:1 b:3]",
        ),
        (
            "{{ mergeOverwrite (dict \"a\" 1 \"b\" 1) (dict \"a\" false \"b\" nil) }}",
            "map[a:false b:<nil>]",
        ),
        (
            "{{ $d := dict \"a\" (dict) }}{{ $c := deepCopy $d }}{{ $_ := set $c.a \"b\" 1 }}{{ $d }}",
            "map[a:map[]]",
        ),
        (
            "{{ dig \"a\" \"b\" \"no\" (dict \"a\" (dict \"b\" 1)) }}{{ dig \"x\" \"no\" (dict) }}",
            "1no",
        ),
    ] {
        assert_eq!(one("", template), expected, "{template}");
    }
}

/// The methods of Helm's and Go's types: a chart calls them on its values, its dot, `.Template`, files,
/// capabilities, versions and points in time.
#[test]
fn objects_have_their_methods() {
    let values = "a: {b: {c: deep}, t: [1]}\nAsMap: hidden\nn: 1\nempty: {}\n";
    let cases = [
        (
            r#"{{ dig "a" "b" "c" "no" .Values.AsMap }} {{ dig "gone" "no" .Values.AsMap }}"#,
            "deep no",
        ),
        (r#"{{ dig "a" "x" .Values }}"#, "wants a map[string]interface {}, not chartutil.Values"),
        (
            r#"{{ (.Values.Table "a.b").c }} {{ typeOf (.Values.Table "a") }}"#,
            "deep chartutil.Values",
        ),
        (r#"{{ (.Values.Table "a").PathValue "b.c" }}"#, "deep"),
        (r#"{{ .Values.Table "n" }}"#, r#"error calling Table: "n" is not a table"#),
        (r#"{{ .Values.PathValue "a.b.c" }} {{ .Values.PathValue "n" }}"#, "deep 1"),
        (r#"{{ .Values.PathValue "a.b" }}"#, r#"error calling PathValue: "b" is not a value"#),
        (r#"{{ .Values.PathValue "" }}"#, "YAML path cannot be empty"),
        (r#"{{ (.Values.Table "a").YAML }}"#, "b:\n  c: deep\nt:\n- 1\n"),
        (r#"{{ .Values.Encode }}"#, "wrong number of args for Encode: want 1 got 0"),
        (r#"{{ .Values.AsMap 1 }}"#, "wrong number of args for AsMap: want 0 got 1"),
        (r#"{{ typeOf .Values }} {{ kindOf .Values }}"#, "chartutil.Values map"),
        (
            r#"{{ typeOf .Values.a }} {{ typeOf .Values.AsMap }}"#,
            "map[string]interface {} map[string]interface {}",
        ),
        (r#"{{ .Values.a.AsMap }}|{{ index .Values "AsMap" }}"#, "|hidden"),
        (r#"{{ typeOf (set .Values "x" 1) }} {{ .Values.x }}"#, "map[string]interface {} 1"),
        (r#"{{ $_ := set .Values.AsMap "x" 1 }}{{ .Values.x }}"#, "1"),
        (r#"{{ (merge .Values (dict "q" 2)).q }} {{ hasKey .Values "n" }}"#, "2 true"),
        (r#"{{ deepEqual .Values .Values }} {{ deepEqual .Values .Values.AsMap }}"#, "true false"),
        (r#"{{ (.Table "Values.a.b").c }} {{ .AsMap.Values.n }}"#, "deep 1"),
        (
            r#"{{ .Template.PathValue "Name" }} {{ .Template.AsMap.BasePath }}"#,
            "demo/templates/x.yaml demo/templates",
        ),
        (
            r#"{{ define "t" }}{{ dig "n" 0 .Values.AsMap }}{{ end }}{{ include "t" . }}{{ tpl "{{ .Values.AsMap.n }}" . }}"#,
            "11",
        ),
        (
            r#"{{ .Files.Get "Chart.yaml" }}{{ .Files.GetBytes "x" | len }}{{ .Files.Lines "x" }}{{ len (.Files.Glob "*") }}"#,
            "0[]0",
        ),
        (r#"{{ .Files.AsConfig }}{{ .Files.AsSecrets }}"#, "{}{}"),
        (
            r#"{{ .Capabilities.APIVersions.Has "v1" }} {{ .Capabilities.Copy.KubeVersion.Major }}"#,
            "true 1",
        ),
        (
            r#"{{ with .Capabilities.KubeVersion }}{{ .String }} {{ .GitVersion }} {{ .Version }} {{ .Major }}.{{ .Minor }}{{ end }}"#,
            "v1.32.0 v1.32.0 v1.32.0 1.32",
        ),
        (
            r#"{{ toJson .Capabilities.KubeVersion }}"#,
            r#"{"Major":"1","Minor":"32","Version":"v1.32.0"}"#,
        ),
        (r#"{{ .Capabilities.HelmVersion.Version | hasPrefix "v3." }}"#, "true"),
        (
            r#"{{ .Chart.Metadata.Name }} {{ .Chart.IsRoot }} {{ .Chart.Maintainers }}"#,
            "demo true []",
        ),
        (
            r#"{{ toJson .Chart }}"#,
            r#"{"IsRoot":true,"apiVersion":"v2","appVersion":"4.5","name":"demo","version":"1.2.3"}"#,
        ),
        (
            r#"{{ (semver "v1.2.3-rc.1").IncPatch }} {{ (semver "v1.2.3").IncPatch.Original }} {{ (semver "1.2.3").IncMinor }} {{ (semver "1.2.3").IncMajor }}"#,
            "1.2.3 v1.2.4 1.3.0 2.0.0",
        ),
        (
            r#"{{ ((semver "1.2.3").SetPrerelease "a").SetMetadata "b" }} {{ (semver "1.2.3").LessThanEqual (semver "1.2.3") }}"#,
            "1.2.3-a+b true",
        ),
        (
            r#"{{ (now.AddDate 1 2 3).Format "2006-01-02" }} {{ now.Before (now.Add 1000000000) }} {{ now.Equal now }}"#,
            "1971-03-04 true true",
        ),
    ];
    for (template, expected) in cases {
        let text = one(values, template);
        assert!(text == expected || text.ends_with(&format!(": {expected}")), "{template}: {text}");
    }
    // Those of a dependency, and what its parent sees of it.
    let all = [
        ("values.yaml", "sub: {a: {b: 1}}\n"),
        (
            "templates/x.yaml",
            "{{ typeOf .Subcharts.sub }} {{ dig \"a\" \"b\" 0 .Subcharts.sub.Values.AsMap }}",
        ),
        ("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.4.0\n"),
        ("charts/sub/templates/y.yaml", "{{ dig \"a\" \"b\" 0 .Values.AsMap }}"),
        ("charts/bare/Chart.yaml", "apiVersion: v2\nname: bare\nversion: 1.4.0\n"),
        ("charts/bare/templates/y.yaml", "{{ dig \"a\" \"none\" .Values.AsMap }}"),
    ];
    let texts: Vec<String> = render(&all, &[]).unwrap().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["none", "1", "map[string]interface {} 1"]);
}

#[test]
fn yaml_is_written_as_helm_does() {
    let long = "word ".repeat(18);
    let values = format!(
        "a: 'yes'\nb: \"1.0\"\nc: 'x: y'\nd: \"two\\nlines\\n\"\ne: ''\nf: '012'\ng: 1e21\nh: [[1, 2], []]\n\
         i: {{}}\nj: '{long}end'\nk: \"tab\\there\"\nl: 12:30\nm: 2001-01-01\n\"n\": x\n'*': '- a'\n"
    );
    let expected = "'*': '- a'\na: \"yes\"\nb: \"1.0\"\nc: 'x: y'\nd: |\n  two\n  lines\ne: \"\"\nf: \"012\"\n\
                    g: 1e+21\nh:\n- - 1\n  - 2\n- []\ni: {}\n\
                    j: word word word word word word word word word word word word word word word word\n  \
                    word word end\nk: \"tab\\there\"\nl: \"12:30\"\nm: \"2001-01-01\"\n\"n\": x";
    assert_eq!(one(&values, "{{ toYaml .Values }}"), expected);
}

#[test]
fn helpers_files_and_texts_of_values() {
    let all = [
        ("values.yaml", "text: '{{ .Release.Name }}-{{ include \"demo.name\" . }}'\n"),
        ("templates/_helpers.tpl", "{{ define \"demo.name\" }}{{ .Chart.Name }}{{ end }}"),
        (
            "templates/x.yaml",
            "{{ tpl .Values.text . }} {{ include \"demo.name\" . | upper }}\n\
             {{ .Files.Get \"conf/a.txt\" }} {{ .Files.Lines \"conf/b.txt\" | len }}\n\
             {{ (.Files.Glob \"conf/*\").AsConfig }}\n{{ (.Files.Glob \"conf/a*\").AsSecrets }}\n\
             {{ range $path, $_ := .Files.Glob \"**.txt\" }}{{ $path }};{{ end }}",
        ),
        ("templates/empty.yaml", "{{ if false }}x{{ end }}\n"),
        ("templates/NOTES.txt", "notes: are: no manifest"),
        ("conf/a.txt", "A"),
        ("conf/b.txt", "1\n2\n"),
        ("crds/crd.yaml", "kind: {{ not a template }}\n"),
    ];
    let rendered = render(&all, &[]).unwrap();
    assert_eq!(rendered.len(), 2, "{rendered:?}");
    assert_eq!(rendered[0].0, "demo/crds/crd.yaml");
    assert_eq!(
        rendered[1].1,
        "rel-demo DEMO\nA 2\na.txt: A\nb.txt: |\n  1\n  2\na.txt: QQ==\nconf/a.txt;conf/b.txt;"
    );
}

#[test]
fn dependencies_take_part_as_asked() {
    let parent = "apiVersion: v2\nname: demo\nversion: 1.0.0\ndependencies:\n\
        - {name: sub, version: 1.x, condition: sub.enabled}\n\
        - {name: sub, version: 1.x, alias: other, tags: [extra]}\n\
        - {name: lib, version: '*', import-values: [data]}\n";
    let all = [
        ("Chart.yaml", parent),
        ("values.yaml", "sub: {a: parent}\nglobal: {g: G}\ntags: {extra: false}\n"),
        ("templates/_h.tpl", "{{ define \"who\" }}parent{{ end }}"),
        ("templates/x.yaml", "{{ .Values.imported }} {{ keys .Subcharts | sortAlpha }}"),
        ("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.4.0\n"),
        ("charts/sub/values.yaml", "a: own\nb: own\nc: own\nglobal: {h: H}\n"),
        ("charts/sub/templates/_h.tpl", "{{ define \"who\" }}sub{{ end }}"),
        (
            "charts/sub/templates/y.yaml",
            "{{ .Chart.Name }} {{ include \"who\" . }} {{ .Values.a }} {{ .Values.b }} [{{ .Values.c }}] {{ .Values.global }}",
        ),
        ("charts/lib/Chart.yaml", "apiVersion: v2\nname: lib\nversion: 0.1.0\ntype: library\n"),
        ("charts/lib/values.yaml", "exports: {data: {imported: yes}}\n"),
        ("charts/lib/templates/z.yaml", "not rendered"),
    ];
    let given = json!({"sub": {"b": "user", "c": null}});
    let rendered = render(&all, &[given]).unwrap();
    let expected = [
        ("demo/charts/sub/templates/y.yaml", "sub parent parent user [] map[g:G h:H]"),
        ("demo/templates/x.yaml", "true [lib sub]"),
    ];
    let got: Vec<(&str, &str)> = rendered.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    assert_eq!(got, expected);

    let given = json!({"sub": {"enabled": false}, "tags": {"extra": true}});
    let rendered = render(&all, &[given]).unwrap();
    assert_eq!(rendered[0].0, "demo/charts/other/templates/y.yaml");
    assert_eq!(rendered[0].1, "other parent own own [own] map[g:G h:H]");
    assert_eq!(rendered[1].1, "true [lib other]");
}

#[test]
fn later_values_win_and_null_takes_away() {
    let all = [
        ("values.yaml", "a: {x: 1, z: 2}\nb: keep\n"),
        ("templates/x.yaml", "{{ toJson .Values }}"),
    ];
    let values = [json!({"a": {"x": 5}}), json!({"a": {"x": 6, "z": null}})];
    let rendered = render(&all, &values).unwrap();
    assert_eq!(rendered[0].1, r#"{"a":{"x":6},"b":"keep"}"#);
}

#[test]
fn errors_name_file_line_and_column() {
    for (template, parts) in [
        ("a\n  {{ .Values.x.y.z }}", vec!["demo/templates/x.yaml:2:6", ".Values.x is not set"]),
        ("{{ if }}", vec!["demo/templates/x.yaml:1:"]),
        ("{{ fail \"stop\" }}", vec!["demo/templates/x.yaml:1:4: stop"]),
        ("{{ required \"give it\" .Values.x }}", vec!["give it"]),
        ("{{ eq 1 1.0 }}", vec!["incompatible types"]),
        ("{{ nosuch 1 }}", vec!["\"nosuch\" not defined"]),
        ("{{ upper 5 }}", vec!["expected string; got int"]),
        ("{{ include \"gone\" . }}", vec!["no template \"gone\""]),
        ("{{ .Chart.Nope }}", vec!["can't evaluate field Nope"]),
        ("{{ tpl \"{{ fail \\\"inner\\\" }}\" . }}", vec!["x.yaml (tpl):1:4: inner"]),
    ] {
        let error = one("", template);
        for part in parts {
            assert!(error.contains(part), "{template}: {error}");
        }
    }
}

#[test]
fn unfit_charts_are_refused() {
    let with = |more: &str| format!("{CHART}{more}");
    for (chart, part) in [
        (with("kubeVersion: '>=1.33.0-0'\n"), ">=1.33.0-0"),
        (with("type: library\n"), "library"),
        (with("dependencies: [{name: gone, version: 1.0.0}]\n"), "gone"),
        ("apiVersion: v3\nname: demo\n".to_owned(), "v3"),
        ("apiVersion: v2\n".to_owned(), "name"),
    ] {
        let error = render(&[("Chart.yaml", &chart)], &[]).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(Chart::load(BTreeMap::new()).is_err());
    let fits = with("kubeVersion: '>=1.25.0-0'\n");
    render(&[("Chart.yaml", &fits)], &[]).unwrap();
}

/// Rendering a hostile chart ends with an error and does not abort the process.
#[test]
fn hostile_templates_are_stopped() {
    let nest = "{{ $d := dict }}{{ $top := $d }}{{ range until 20000 }}{{ $n := dict }}\
                {{ $_ := set $d \"k\" $n }}{{ $d = $n }}{{ end }}";
    for (template, part) in [
        ("{{ define \"a\" }}{{ include \"a\" . }}{{ end }}{{ include \"a\" . }}", "more than 1000"),
        ("{{ define \"a\" }}{{ template \"a\" . }}{{ end }}{{ template \"a\" . }}", "too deeply"),
        ("{{ tpl .Values.loop . }}", "too deeply"),
        (
            "{{ $s := \"xxxxxxxx\" }}{{ range until 40 }}{{ $s = print $s $s }}{{ end }}",
            "it would take more than 128 MiB",
        ),
        (
            "{{ $s := repeat 1000000 \"x\" }}{{ range until 100 }}{{ $s }}{{ end }}",
            "writes more than",
        ),
        ("{{ range until 2000 }}{{ range until 2000 }}{{ end }}{{ end }}", "iterations"),
        ("{{ range 100000000000 }}{{ end }}", "iterations"),
    ] {
        let error = one("loop: '{{ tpl .Values.loop . }}'\n", template);
        assert!(error.contains(part), "{template}: {error}");
    }
    for template in [
        "{{ $d := dict }}{{ $_ := set $d \"self\" $d }}{{ $d }}{{ toYaml $d }}{{ deepEqual $d (dict \"self\" $d) }}",
        &format!("{nest}{{{{ $top }}}}"),
        &format!("{nest}{{{{ toJson $top }}}}"),
        &format!("{nest}{{{{ deepCopy $top }}}}"),
        &format!("{nest}{{{{ merge $top $top }}}}"),
    ] {
        // Either text or an error is accepted, provided that rendering ends.
        one("", template);
    }
}

#[test]
fn archives_are_unpacked_within_their_directory() {
    let pack = |all: &[(&str, &str)]| {
        let mut tar = Vec::new();
        for (path, text) in all {
            let mut header = [0_u8; 512];
            header[..path.len()].copy_from_slice(path.as_bytes());
            header[100..108].copy_from_slice(b"0000644\0");
            header[108..116].copy_from_slice(b"0000000\0");
            header[116..124].copy_from_slice(b"0000000\0");
            header[124..136].copy_from_slice(format!("{:011o}\0", text.len()).as_bytes());
            header[136..148].copy_from_slice(b"00000000000\0");
            header[148..156].copy_from_slice(b"        ");
            header[156] = b'0';
            header[257..265].copy_from_slice(b"ustar\x0000");
            let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            tar.extend_from_slice(&header);
            tar.extend_from_slice(text.as_bytes());
            tar.resize(tar.len().next_multiple_of(512), 0);
        }
        tar.resize(tar.len() + 1024, 0);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&tar).unwrap();
        gzip.finish().unwrap()
    };
    let sub = pack(&[
        ("sub/Chart.yaml", "apiVersion: v1\nname: sub\nversion: 1.0.0\n"),
        ("sub/templates/y.yaml", "image: sub:{{ .Chart.Version }}"),
    ]);
    let packed = pack(&[
        ("demo/Chart.yaml", CHART),
        ("demo/templates/x.yaml", "image: demo:{{ .Chart.AppVersion }}"),
    ]);
    let chart = Chart::load_archive(&packed).unwrap();
    assert_eq!(chart.name(), "demo");
    assert_eq!(chart.render(&[], &options()).unwrap()[0].text, "image: demo:4.5");

    let mut with_sub = files(&[]);
    with_sub.insert("charts/sub-1.0.0.tgz".to_owned(), sub);
    let rendered = Chart::load(with_sub).unwrap().render(&[], &options()).unwrap();
    assert_eq!(rendered[0].path, "demo/charts/sub/templates/y.yaml");

    for bad in [
        pack(&[("demo/../../etc/passwd", "x")]),
        pack(&[("Chart.yaml", CHART)]),
        packed[..packed.len() / 2].to_vec(),
        b"not an archive".to_vec(),
    ] {
        assert!(Chart::load_archive(&bad).is_err());
    }
    let zeros = "0".repeat(MOST_BYTES + 1);
    let error = Chart::load_archive(&pack(&[("demo/big", &zeros)])).unwrap_err();
    assert!(error.to_string().contains("too large"), "{error}");
}

/// A packed chart with these files.
pub(super) fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (path, content) in files {
        let mut header = [0_u8; 512];
        header[..path.len()].copy_from_slice(path.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[156] = b'0';
        header[257..263].copy_from_slice(b"ustar\0");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        tar.extend_from_slice(&header);
        tar.extend_from_slice(content);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&tar).unwrap();
    gzip.finish().unwrap()
}

/// The first byte chooses what is hostile: the archive, Chart.yaml, the values, .helmignore, a template, a dependency.
#[test]
fn any_archive_is_a_chart_or_refused() {
    let dependency = packed(&[("sub/Chart.yaml", b"name: sub\nversion: 1.0.0\n")]);
    let good: [(&str, &[u8]); 5] = [
        ("demo/Chart.yaml", b"apiVersion: v2\nname: demo\nversion: 1.2.3\ndependencies:\n- name: sub\n  condition: sub.on\n"),
        ("demo/values.yaml", b"a: &a {b: [1, 2]}\nsub: {on: true, c: *a}\n"),
        ("demo/.helmignore", b"*.bak\n!/x\ndir/\n"),
        ("demo/templates/x.yaml", b"{{ range .Values.a.b }}{{ . }}{{ end }}{{ include \"x\" . }}"),
        ("demo/charts/sub-1.0.0.tgz", &dependency),
    ];
    let whole = packed(&good);
    assert_eq!(Chart::load_archive(&whole).unwrap().name(), "demo");
    bolero::check!().for_each(|input: &[u8]| {
        let Some((which, input)) = input.split_first() else { return };
        let which = usize::from(*which) % (good.len() + 1);
        let bytes = match good.get(which) {
            None => imgctl_base::testing::damaged(&whole, input),
            Some((_, valid)) => {
                let mut files = good;
                let changed = imgctl_base::testing::damaged(valid, input);
                files[which].1 = &changed;
                packed(&files)
            }
        };
        if let Ok(chart) = Chart::load_archive(&bytes)
            && let Ok(rendered) = chart.render(&[], &options())
        {
            assert!(rendered.iter().map(|one| one.text.len()).sum::<usize>() < 64 << 20);
        }
    });
}
