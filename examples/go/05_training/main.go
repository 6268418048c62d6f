// Softmax regression on Fisher's irises: every rank has a part of the flowers, and all add up their
// gradients in each step: oxccl run -n 4 ./05_training ../data/iris.csv
package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"log"
	"math"
	"os"
	"slices"
	"strconv"

	. "examples/internal/example"
	"oxccl"
)

const (
	inputs  = 5
	kinds   = 3
	weights = inputs * kinds
	epochs  = 300
)

type flower struct {
	inputs [inputs]float64
	kind   int
}

// load reads four lengths in cm and the kind per line, after a line of titles, and centres and
// scales the lengths.
func load(path string) []flower {
	lines := Must(csv.NewReader(Must(os.Open(path))).ReadAll())[1:]
	flowers := make([]flower, len(lines))
	for i, line := range lines {
		for j := 0; j < 4; j++ {
			flowers[i].inputs[j] = Must(strconv.ParseFloat(line[j], 64))
		}
		flowers[i].inputs[4] = 1
		flowers[i].kind = Must(strconv.Atoi(line[4]))
	}
	n := float64(len(flowers))
	for j := 0; j < 4; j++ {
		sum, squares := 0.0, 0.0
		for _, f := range flowers {
			sum += f.inputs[j]
		}
		for _, f := range flowers {
			squares += math.Pow(f.inputs[j]-sum/n, 2)
		}
		for i := range flowers {
			flowers[i].inputs[j] = (flowers[i].inputs[j] - sum/n) / math.Sqrt(squares/n)
		}
	}
	return flowers
}

// learn adds a flower's gradient, and whether its kind was guessed.
func learn(w []float64, f flower, sums []float64) {
	var p [kinds]float64
	sum, best := 0.0, 0
	for k := range p {
		for j, x := range f.inputs {
			p[k] += w[k*inputs+j] * x
		}
		p[k] = math.Exp(p[k])
		sum += p[k]
		if p[k] > p[best] {
			best = k
		}
	}
	for k := range p {
		off := p[k] / sum
		if k == f.kind {
			off--
		}
		for j, x := range f.inputs {
			sums[k*inputs+j] += off * x
		}
	}
	if best == f.kind {
		sums[weights]++
	}
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: 05_training iris.csv")
	}
	flowers := load(os.Args[1])
	ctx := context.Background()
	comm := Must(oxccl.InitEnv(ctx))
	defer comm.Close()
	w := make([]float64, weights)
	sums := make([]float64, weights+1) // gradient, and good guesses
	for epoch := 0; epoch < epochs; epoch++ {
		clear(sums)
		for i := comm.Rank(); i < len(flowers); i += comm.Size() {
			learn(w, flowers[i], sums)
		}
		Check(oxccl.AllReduce(ctx, comm, sums, sums, oxccl.Sum))
		for i := range w {
			w[i] -= 0.5 * sums[i] / float64(len(flowers))
		}
	}
	// All ranks have come to the same weights.
	most := slices.Clone(w)
	Check(oxccl.AllReduce(ctx, comm, most, most, oxccl.Max))
	guessed := sums[weights]
	right := slices.Equal(w, most) && guessed >= 0.95*150 && guessed <= 150
	Verdict(right, comm.Rank(), comm.Size(), fmt.Sprintf("%.0f of %d flowers", guessed, len(flowers)))
}
