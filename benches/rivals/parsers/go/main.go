// Go's parsers of the Prometheus text format on the same pages: VictoriaMetrics' and Prometheus' common library.
// Processor time of the process, garbage collection included; built by `cargo xtask parsers` from Debian's packages.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	vm "github.com/VictoriaMetrics/VictoriaMetrics/lib/protoparser/prometheus"
	"github.com/prometheus/common/expfmt"
)

type parser struct {
	name  string
	parse func(page string) int
}

func cpu() float64 {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		panic(err)
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(use.Utime) + seconds(use.Stime)
}

func rate(parse func(string) int, page string, seconds float64) float64 {
	best := 0.0
	for part := 0; part < 5; part++ {
		start, rounds, took := cpu(), 0, 0.0
		for took < seconds/5 {
			for i := 0; i < 8; i++ {
				if parse(page) == 0 {
					panic("no samples")
				}
			}
			rounds += 8
			took = cpu() - start
		}
		if speed := float64(rounds) * float64(len(page)) / 1e6 / took; speed > best {
			best = speed
		}
	}
	return best
}

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		panic(err)
	}
	var rows vm.Rows
	var text expfmt.TextParser
	parsers := []parser{
		{"VictoriaMetrics 1.79 (Go)", func(page string) int {
			rows.Unmarshal(page)
			return len(rows.Rows)
		}},
		{"prometheus/common expfmt (Go)", func(page string) int {
			families, err := text.TextToMetricFamilies(bytes.NewReader([]byte(page)))
			if err != nil {
				panic(err)
			}
			return len(families)
		}},
	}
	var pages []string
	for _, path := range os.Args[2:] {
		page, err := os.ReadFile(path)
		if err != nil {
			panic(err)
		}
		pages = append(pages, string(page))
	}
	for _, p := range parsers {
		cells := make([]string, 0, len(pages))
		for _, page := range pages {
			cells = append(cells, fmt.Sprintf(" %.0f |", rate(p.parse, page, seconds)))
		}
		fmt.Printf("| %s |%s\n", p.name, strings.Join(cells, ""))
	}
}
